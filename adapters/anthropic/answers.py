"""Answers of `/v1/messages`: one JSON object, or a stream of named events.

The content of a stream is a sequence of blocks, one open at a time: text, thinking or one tool call. A stream ends with
`message_stop` if and only if `Usage` was fed, and with an `error` event after an error.
"""

from __future__ import annotations

import msgspec

from adapters.anthropic.dialects import Dialect
from adapters.base import Headers, Reply, error_headers
from adapters.blocks import Blocks, Opened, Said
from adapters.calls import CUTTING, written_arguments, written_signature
from adapters.dialect import row_for
from adapters.fold import blocks
from adapters.formats.sse import guard
from adapters.optional import RunWriter
from schemas import anthropic as wire
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import Delta, Events, Finished, Generate, Relayed, Started, ToolCall, Usage

_json = msgspec.json.Encoder().encode
_type_of = msgspec.json.Decoder(wire.EventType).decode

Block = wire.TextBlock | wire.ThinkingBlock | wire.ToolUseBlock


def encode_answer(dialect: Dialect, request: Generate, answer: Completion) -> Reply:
    """The whole answer to `request`.

    Raises:
        schemas.errors.BackendFailed: the arguments of a tool call are no JSON object, which the protocol requires.
    """
    if answer.relayed is not None:
        return Reply(guard(answer.relayed))
    # The protocol has no `n`: a request from it has one prompt and one choice.
    choice = answer.choices[0]
    message = wire.Answer(
        id=_message_id(request),
        model=answer.model,
        content=_content(choice),
        stop_reason=_stop_reason(dialect, choice, refused=bool(choice.refusal)),
        stop_sequence=choice.stop,
        usage=_usage(answer.usage),
    )
    return Reply(guard(_json(message)))


def error_reply(dialect: Dialect, error: GatewayError) -> Reply:
    """The reply to an error."""
    status = row_for(dialect.wording.failures, error).status
    return Reply(error_body(dialect, error), status, headers=error_headers(error))


def error_body(dialect: Dialect, error: GatewayError) -> bytes:
    """The JSON of an error."""
    message = error.message
    if isinstance(error, UnsupportedFeature):
        message = dialect.wording.unsupported.get(error.feature, message)
    fields = {"type": "error", "error": wire.Error(row_for(dialect.wording.failures, error).type, message)}
    return _json(fields | ({"request_id": error.request_id} if error.request_id else {}))


def _message_id(request: Generate) -> str:
    return f"msg_{request.id}"


class StreamWriter:
    """Writer of one stream.

    Args:
        dialect: the dialect to speak.
        request: the request that is answered.
    """

    media_type = "text/event-stream"
    headers: Headers = (("cache-control", "no-cache"),)
    status_waits = False
    abort_after_error = False

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        self._dialect = dialect
        self._request = request
        self._blocks = Blocks()
        self._index = 0  # of the open block
        # Text deltas are the hot path: the bytes around the text are encoded once for each block.
        self._around_text = (b"", b"")  # the bytes before and after the text of a delta of the open block
        self._finished: Finished | None = None
        self._refused = self._relaying = self._stopped = False

    def feed(self, events: Events) -> bytes:
        """The protocol's events for a batch of ours."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                out.append(self._relay(event.data))
            elif self._relaying:
                # The remote's own `message_stop` is the end, unless it closed the connection without one.
                if isinstance(event, Usage) and not self._stopped:
                    out.append(_event("message_stop", {}))
            elif isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                out.append(self._start(event))
            elif isinstance(event, Usage):
                out.append(self._end(event))
        return b"".join(out)

    def run_writer(self, choice: int) -> RunWriter | None:  # noqa: ARG002 - there is one
        """What writes texts alone, until more is fed; None: these are to be fed."""
        if self._relaying or not self._blocks.is_open("text"):
            return None
        return self._around_text[0] + b'"', b'"' + self._around_text[1]

    def fail(self, error: GatewayError) -> bytes:
        """The error event that ends the stream."""
        return b"event: error\ndata: %b\n\n" % guard(error_body(self._dialect, error))

    def _relay(self, data: bytes) -> bytes:
        """A remote's event as it came."""
        self._relaying = True
        name = "".join(_type_of(data).type.splitlines())  # the name is text that the remote controls
        self._stopped = name == "message_stop"
        # Line breaks between JSON tokens would end the field; within strings JSON escapes them.
        return b"event: %b\ndata: %b\n\n" % (name.encode(), guard(data.replace(b"\n", b"")))

    def _start(self, started: Started) -> bytes:
        message = wire.Answer(
            id=_message_id(self._request),
            model=started.model,
            content=(),
            stop_reason=None,
            stop_sequence=None,
            # `message_start` must have a usage, before any count of a remote may be known. `message_delta` corrects it:
            # its counts are cumulative, and SDKs take the last ones.
            usage=wire.Usage(started.prompt_tokens or 0, 0, 0, 0),
        )
        return _event("message_start", {"message": message})

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        # `Blocks` would make a block of its own of a refusal; merged into the text, it continues the open text block.
        if delta.refusal:  # the protocol has no refusals, only a stop reason
            self._refused = True
            delta = msgspec.structs.replace(delta, text=delta.text + delta.refusal, refusal="")
        for step in self._blocks.feed(delta):
            if isinstance(step, Said):
                before, after = self._around_text
                out.append(before + guard(_json(step.text)) + after)
            elif isinstance(step, Opened):
                out.append(self._open(step))
            else:
                out.append(_event("content_block_stop", {"index": self._index}))
                self._index += 1
        if isinstance(delta, Finished):
            self._finished = delta

    def _open(self, opened: Opened) -> bytes:
        block, delta = self._empty_block(opened)
        event = _event("content_block_delta", {"index": self._index, "delta": delta})
        # The empty string at the end of the JSON is where each delta's text goes. `rsplit`: a name or an id could hold
        # `""`.
        before, after = event.rsplit(b'""', 1)
        self._around_text = (before, after)
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _empty_block(self, opened: Opened) -> tuple[Block, dict[str, str]]:
        """A block without content, and a delta of it without content."""
        if (call := opened.call) is not None:
            id = call.id or f"toolu_{self._request.id}_{call.index}"
            # `content_block_start` always has an empty input; the arguments follow as `input_json_delta` events.
            extra = written_signature(call.signature)
            block = wire.ToolUseBlock(id, call.name or "", msgspec.Raw(b"{}"), extra)
            return block, {"type": "input_json_delta", "partial_json": ""}
        if opened.kind == "reasoning":
            return wire.ThinkingBlock(""), {"type": "thinking_delta", "thinking": ""}
        return wire.TextBlock(""), {"type": "text_delta", "text": ""}

    def _end(self, usage: Usage) -> bytes:
        finished = self._finished
        delta = {
            "stop_reason": None if finished is None else _stop_reason(self._dialect, finished, refused=self._refused),
            "stop_sequence": None if finished is None else finished.stop,
        }
        # `stop_reason` and the final usage travel in `message_delta`; `message_stop` is the terminator and has no
        # fields.
        return _event("message_delta", {"delta": delta, "usage": _usage(usage)}) + _event("message_stop", {})


def _event(name: str, fields: dict[str, object]) -> bytes:
    # The name stands in the `event` field and again in `type`: SDKs dispatch by the former, and parse by the latter.
    return b"event: %b\ndata: %b\n\n" % (name.encode(), guard(_json({"type": name} | fields)))


def _stop_reason(dialect: Dialect, finished: Choice | Finished, *, refused: bool) -> str:
    return "refusal" if refused else dialect.wording.stop_reasons[finished.reason]


def _content(choice: Choice) -> tuple[Block, ...]:
    content: list[Block] = []
    for block in blocks(choice):
        if isinstance(block, ToolCall):
            # In a stream the pieces of truncated arguments are sent as they are; in a whole answer `input` must be an
            # object.
            arguments = written_arguments(block, truncated=choice.reason in CUTTING)
            content.append(wire.ToolUseBlock(block.id, block.name, arguments, written_signature(block.signature)))
        elif block[0] == "reasoning":
            content.append(wire.ThinkingBlock(block[1]))
        elif content and isinstance(content[-1], wire.TextBlock):  # a refusal is text
            content[-1] = wire.TextBlock(content[-1].text + block[1])
        else:
            content.append(wire.TextBlock(block[1]))
    return tuple(content)


def _usage(usage: Usage) -> wire.Usage:
    # The IR counts cached tokens within the prompt, the protocol beside `input_tokens`.
    cached = usage.cached_tokens or 0
    return wire.Usage(usage.prompt_tokens - cached, 0, cached, usage.completion_tokens)
