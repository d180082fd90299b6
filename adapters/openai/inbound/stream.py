"""Streamed answers: what chats and completions have in common, which is all but their choices.

A stream ends with `[DONE]` if and only if `Usage` was fed: a failed one has an error for its last event, no finish
reason and no terminator. Text is the hot path, and its chunks are made of bytes prepared once a choice.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from adapters.base import Headers
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import wire_usage
from adapters.sse import guard
from schemas.errors import GatewayError
from schemas.ir import Delta, Events, Generate, Relayed, Started, Usage

Frame = Callable[[GatewayError], bytes]

_json = msgspec.json.Encoder().encode
_EMPTY_TEXT = b'""'


def encode(said: object) -> bytes:
    """JSON that holds a text, as one line to every client. Guarded piece by piece: whole chunks would cost more."""
    return guard(_json(said))


class StreamWriter:
    """One stream being written. Subclasses write choices.

    Args:
        dialect: the row of the table to speak.
        request: what is answered.
        created: Unix time in seconds.
        failure: writes an error's data.
    """

    media_type = "text/event-stream"
    abort_after_error = False
    headers: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
    object = ""

    def __init__(self, dialect: Dialect, request: Generate, created: int, failure: Frame) -> None:
        self._dialect = dialect
        self._request = request
        self._created = created
        self._failure = failure
        self._prompts: Started = Started(request.model)
        self._head = b""
        self._texts: dict[int, tuple[bytes, bytes]] = {}
        self._held: bytes | None = None
        self._generated = 0
        self._relaying = False
        self._usage_chunk = request.stream_usage and not dialect.answers.usage_on_every_chunk
        self._every_chunk = dialect.answers.usage_on_every_chunk or (self._usage_chunk and request.continuous_usage)
        self._tail = b'],"usage":null}\n\n' if self._usage_chunk else b"]}\n\n"

    def feed(self, events: Events) -> bytes:
        """The chunks that say these events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relaying = True
                out.append(b"data: %b\n\n" % guard(event.data.replace(b"\n", b"")))
            elif self._relaying:
                if isinstance(event, Usage):
                    out.append(b"data: [DONE]\n\n")
            elif isinstance(event, Delta):
                self._count(event)
                if self._held is not None:
                    out.append(self._release())
                out.append(self._delta(event))
            elif isinstance(event, Started):
                self._start(event)
            else:
                out.append(self._end(event))
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The error as the last event."""
        return b"data: %b\n\n" % guard(self._failure(error))

    def _id(self) -> str:
        raise NotImplementedError

    def _delta(self, delta: Delta) -> bytes:
        """The chunks of a delta."""
        raise NotImplementedError

    def _text_choice(self, index: int) -> bytes:
        """A choice whose text is `""`, which is where texts go."""
        raise NotImplementedError

    def _start(self, started: Started) -> None:
        self._prompts = started
        fingerprint = self._dialect.answers.fingerprint
        head = encode(
            {"id": self._id(), "object": self.object, "created": self._created, "model": started.model}
            | ({"system_fingerprint": fingerprint} if fingerprint else {})
        )
        self._head = b'data: %b,"choices":[' % head[:-1]

    def _text(self, index: int, text: str) -> bytes:
        """A chunk that adds nothing but text."""
        around = self._texts.get(index)
        if around is None:
            before, _, after = self._text_choice(index).partition(_EMPTY_TEXT)
            if not self._every_chunk:
                after += self._tail
            around = self._texts[index] = (self._head + before, after)
        if self._every_chunk:
            return around[0] + encode(text) + around[1] + self._counted()
        return around[0] + encode(text) + around[1]

    def _chunk(self, choice: bytes) -> bytes:
        return self._head + choice + (self._counted() if self._every_chunk else self._tail)

    def _finish(self, choice: bytes) -> bytes:
        """A choice's last chunk; where it tells the usage, the last one of all waits until that is known."""
        if self._every_chunk and not self._usage_chunk:
            self._held = choice
            return b""
        return self._chunk(choice)

    def _release(self) -> bytes:
        held, self._held = self._held, None
        return b"" if held is None else self._chunk(held)

    def _end(self, usage: Usage) -> bytes:
        out = b""
        if self._held is not None:
            out = self._head + self._held + self._with_usage(usage)
            self._held = None
        elif self._usage_chunk:
            out = self._head + self._with_usage(usage)
        return out + b"data: [DONE]\n\n"

    def _count(self, delta: Delta) -> None:
        """Where no tokens are told, a delta that says anything counts as one."""
        self._generated += len(delta.tokens) or bool(delta.text or delta.reasoning or delta.tool_calls or delta.refusal)

    def _counted(self) -> bytes:
        """The usage so far, which is unknown until the prompt is counted."""
        if self._prompts.prompt_tokens is None:
            return b'],"usage":null}\n\n'
        return self._with_usage(Usage(self._prompts.prompt_tokens, self._generated))

    def _with_usage(self, usage: Usage) -> bytes:
        return b'],"usage":%b}\n\n' % _json(wire_usage(self._dialect, usage))
