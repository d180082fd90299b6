"""Streamed answers: the base of the writers of chats and completions, which differ only in their choices.

A stream ends with `[DONE]` if and only if `Usage` was fed. A stream that fails ends with an error event, without a
finish reason and without `[DONE]`.

Strategy: text deltas are the hot path. The bytes around the text of a chunk are encoded once for each choice; a text
delta then costs one JSON string and two concatenations.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from adapters.base import Headers
from adapters.formats.sse import guard
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import wire_usage
from adapters.optional import RunWriter
from schemas.errors import GatewayError
from schemas.ir import Delta, Events, Finished, Generate, Relayed, Started, Usage

STREAM_TYPE = "text/event-stream"
STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""Headers of every stream of the protocol; the second one turns off nginx' buffering."""

ErrorEncoder = Callable[[GatewayError], bytes]
"""Writes the data of the event that ends a stream with an error."""

_json = msgspec.json.Encoder().encode
_EMPTY_TEXT = b'""'


def encode(value: object) -> bytes:
    """JSON that every client reads as one line. Applied to the parts of a chunk that hold text, to save time."""
    json = _json(value)
    return json if json.isascii() else guard(json)


class StreamWriter:
    """Writer of one stream. Subclasses encode its choices.

    Args:
        dialect: the dialect to speak.
        request: the request that is answered.
        created: Unix time in seconds.
        encode_error: writes the data of an error event.
        id: the field `id` of every chunk.
    """

    media_type = STREAM_TYPE
    headers = STREAM_HEADERS
    status_waits = False
    abort_after_error = False
    object = ""
    """The field `object` of every chunk."""

    def __init__(
        self, dialect: Dialect, request: Generate, created: int, encode_error: ErrorEncoder, *, id: str
    ) -> None:
        self._dialect = dialect
        self._request = request
        self._created = created
        self._encode_error = encode_error
        self._id = id
        self._started = Started(request.model)
        self._head = b""  # of every chunk, up to its choices
        self._around_text: dict[int, tuple[bytes, bytes]] = {}  # choice -> the bytes before and after a text
        self._held: bytes | None = None  # a finished choice whose chunk waits for the usage
        self._generated: dict[int, int] = {}  # choice -> its tokens so far, where chunks have a usage
        self._relaying = False
        # Three forms of usage: one chunk of its own before `[DONE]` (OpenAI's `include_usage`), that and the usage so
        # far in every chunk (vLLM's `continuous_usage_stats`), or in every chunk with the exact one in the last
        # (Databricks).
        self._usage_chunk = request.stream_usage and not dialect.answers.usage_on_every_chunk
        self._every_chunk = dialect.answers.usage_on_every_chunk or (self._usage_chunk and request.continuous_usage)
        # OpenAI's reference: with `include_usage` "all other chunks will also include a usage field, but with a null
        # value".
        self._tail = b'],"usage":null}\n\n' if self._usage_chunk else b"]}\n\n"

    def feed(self, events: Events) -> bytes:
        """The chunks for a batch of events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relaying = True
                if event.framed:
                    out.append(event.data)
                    continue
                # Line breaks between JSON tokens would end the field; within strings JSON escapes them.
                data = event.data.replace(b"\n", b"")
                out.append(b"data: %b\n\n" % (data if data.isascii() else guard(data)))
            elif self._relaying:
                # A remote's `[DONE]` is not relayed: it is written only when the decoder found the stream complete.
                if isinstance(event, Usage):
                    out.append(b"data: [DONE]\n\n")
            elif isinstance(event, Delta):
                if self._every_chunk:
                    self._count(event)
                # Another event follows, so the held chunk was not the last: it gets the usage so far.
                if self._held is not None:
                    out.append(self._chunk(self._held))
                    self._held = None
                out.append(self._delta(event))
            elif isinstance(event, Started):
                self._start(event)
            else:
                out.append(self._end(event))
        return b"".join(out)

    def run_writer(self, choice: int) -> RunWriter | None:
        """What writes texts of a choice alone, until more is fed; None: these are to be fed."""
        around = self._around_text.get(choice)
        counts = self._every_chunk and self._started.prompt_tokens is not None
        if around is None or counts or self._relaying or self._held is not None or self._request.logprobs:
            return None
        tail = self._usage_so_far() if self._every_chunk else b""
        return around[0] + b'"', b'"' + around[1] + tail

    def fail(self, error: GatewayError) -> bytes:
        """The error event that ends the stream."""
        return b"data: %b\n\n" % guard(self._encode_error(error))

    def _count(self, delta: Delta) -> None:
        """Count the tokens of a delta. One without tokens counts as one, unless it is empty."""
        tokens = len(delta.tokens) or bool(delta.text or delta.reasoning or delta.tool_calls or delta.refusal)
        self._generated[delta.choice] = self._generated.get(delta.choice, 0) + tokens
        # The end of a choice knows those of tags, too, and of pieces of calls that hold several.
        if isinstance(delta, Finished) and delta.generated is not None:
            self._generated[delta.choice] = delta.generated

    def _delta(self, delta: Delta) -> bytes:
        """The chunks of a delta."""
        raise NotImplementedError

    def _text_choice(self, index: int) -> bytes:
        """A choice whose text is `""`; the first `""` in its JSON is where texts are inserted."""
        raise NotImplementedError

    def _start(self, started: Started) -> None:
        self._started = started
        fingerprint = self._dialect.answers.fingerprint
        head = encode(
            {"id": self._id, "object": self.object, "created": self._created, "model": started.model}
            | ({"system_fingerprint": fingerprint} if fingerprint else {})
        )
        # Without the closing brace: choices and usage are appended as bytes.
        self._head = b'data: %b,"choices":[' % head[:-1]

    def _text(self, index: int, text: str) -> bytes:
        """A chunk that adds text and nothing else."""
        around = self._around_text.get(index)
        if around is None:
            # The first `""`: the writers put the text before any other string that may be empty.
            before, _, after = self._text_choice(index).partition(_EMPTY_TEXT)
            if not self._every_chunk:
                after += self._tail
            # Not cached before `Started`: `_head` is empty until then, but no delta precedes it.
            around = self._around_text[index] = (self._head + before, after)
        if self._every_chunk:
            return around[0] + encode(text) + around[1] + self._usage_so_far()
        return around[0] + encode(text) + around[1]

    def _chunk(self, choice: bytes) -> bytes:
        return self._head + choice + (self._usage_so_far() if self._every_chunk else self._tail)

    def _finish(self, choice: bytes) -> bytes:
        """A choice's last chunk. Where the last chunk of all has the exact usage, it is held until the next event."""
        if self._every_chunk and not self._usage_chunk:
            self._held = choice
            return b""
        return self._chunk(choice)

    def _end(self, usage: Usage) -> bytes:
        """The chunk that has the exact usage, if there is one, and the terminator."""
        out = b""
        if self._held is not None:
            out = self._head + self._held + self._with_usage(usage)
            self._held = None
        elif self._usage_chunk:
            out = self._head + self._with_usage(usage)
        # Without the held chunk or a usage chunk, the terminator alone: `[DONE]` always follows the last finish reason.
        return out + b"data: [DONE]\n\n"

    def _usage_so_far(self) -> bytes:
        """The end of a chunk with the usage so far; null while the length of the prompt is unknown."""
        if self._started.prompt_tokens is None:
            return b'],"usage":null}\n\n'
        return self._with_usage(Usage(self._started.prompt_tokens, sum(self._generated.values())))

    def _with_usage(self, usage: Usage) -> bytes:
        """The end of a chunk with a usage."""
        return b'],"usage":%b}\n\n' % _json(wire_usage(self._dialect, usage))
