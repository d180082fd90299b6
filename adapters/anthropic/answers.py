"""Answers, whole and streamed.

A stream's content comes in blocks, one open at a time: text, thinking, or one call of a tool. It ends with
`message_stop` if and only if `Usage` was fed; a failed one ends with an `error` event.
"""

from __future__ import annotations

import msgspec

from adapters.anthropic.dialects import Dialect
from adapters.base import Headers, Reply
from adapters.blocks import Blocks, Opened, Said
from adapters.body import UNREADABLE
from adapters.fold import blocks
from adapters.sse import guard
from schemas import anthropic as wire
from schemas.completion import Choice, Completion
from schemas.errors import BackendFailed, GatewayError, MethodNotAllowed
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, ToolCall, Usage

_json = msgspec.json.Encoder().encode

Block = wire.TextBlock | wire.ThinkingBlock | wire.ToolUseBlock


def whole(dialect: Dialect, request: Generate, answer: Completion) -> Reply:
    """The whole answer.

    Raises:
        schemas.errors.BackendFailed: a tool's arguments are no JSON object, which the protocol has no words for.
    """
    choice = answer.choices[0]
    return Reply(
        guard(
            _json(
                wire.Answer(
                    id=message_id(request),
                    model=answer.model,
                    content=_content(choice),
                    stop_reason=_stop_reason(dialect, choice, refused=bool(choice.refusal)),
                    stop_sequence=choice.stop,
                    usage=_usage(answer.usage),
                )
            )
        )
    )


def failure(dialect: Dialect, error: GatewayError) -> Reply:
    """An error as an answer."""
    headers: Headers = ()
    if error.retry_after is not None:
        headers += (("retry-after", str(max(1, round(error.retry_after)))),)
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers += (("allow", ", ".join(error.allowed)),)
    return Reply(failure_body(dialect, error), dialect.wording.failures[error.kind].status, headers=headers)


def failure_body(dialect: Dialect, error: GatewayError) -> bytes:
    """An error's JSON."""
    told = wire.ErrorAnswer(wire.Error(dialect.wording.failures[error.kind].type, error.message))
    return _json({"type": told.type, "error": told.error})


def message_id(request: Generate) -> str:
    """What the answer is called."""
    return f"msg_{request.id}"


class StreamWriter:
    """One stream being written."""

    media_type = "text/event-stream"
    headers: Headers = (("cache-control", "no-cache"),)
    abort_after_error = False

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        self._dialect = dialect
        self._request = request
        self._blocks = Blocks()
        self._index = 0
        self._around = (b"", b"")  # a piece of the open block
        self._last: Finished | None = None
        self._refused = False

    def feed(self, events: Events) -> bytes:
        """The events that say these events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                out.append(self._start(event))
            elif isinstance(event, Usage):
                out.append(self._end(event))
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The error as the last event."""
        return b"event: error\ndata: %b\n\n" % guard(failure_body(self._dialect, error))

    def _start(self, started: Started) -> bytes:
        message = wire.Answer(
            id=message_id(self._request),
            model=started.model,
            content=(),
            stop_reason=None,
            stop_sequence=None,
            usage=wire.Usage(started.prompt_tokens or 0, 0, 0, 0),
        )
        return _event("message_start", {"message": message})

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        if delta.refusal:  # which is text here
            self._refused = True
            delta = msgspec.structs.replace(delta, text=delta.text + delta.refusal, refusal="")
        for step in self._blocks.feed(delta):
            if isinstance(step, Said):
                before, after = self._around
                out.append(before + guard(_json(step.text)) + after)
            elif isinstance(step, Opened):
                out.append(self._open(step))
            else:
                out.append(_event("content_block_stop", {"index": self._index}))
                self._index += 1
        if isinstance(delta, Finished):
            self._last = delta

    def _open(self, opened: Opened) -> bytes:
        block, piece = self._block(opened)
        frame = _event("content_block_delta", {"index": self._index, "delta": piece})
        before, after = frame.rsplit(b'""', 1)
        self._around = (before, after)
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _block(self, opened: Opened) -> tuple[Block, dict[str, str]]:
        """An empty block, and an empty piece of it."""
        if (call := opened.call) is not None:
            id = call.id or f"toolu_{self._request.id}_{call.index}"
            block = wire.ToolUseBlock(id, call.name or "", msgspec.Raw(b"{}"))
            return block, {"type": "input_json_delta", "partial_json": ""}
        if opened.kind == "reasoning":
            return wire.ThinkingBlock(""), {"type": "thinking_delta", "thinking": ""}
        return wire.TextBlock(""), {"type": "text_delta", "text": ""}

    def _end(self, usage: Usage) -> bytes:
        last = self._last
        delta = {
            "stop_reason": None if last is None else _stop_reason(self._dialect, last, refused=self._refused),
            "stop_sequence": None if last is None else last.stop,
        }
        return _event("message_delta", {"delta": delta, "usage": _usage(usage)}) + _event("message_stop", {})


def _event(name: str, fields: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), guard(_json({"type": name} | fields)))


def _stop_reason(dialect: Dialect, ended: Choice | Finished, *, refused: bool) -> str:
    return "refusal" if refused else dialect.wording.stop_reasons[ended.reason]


def _content(choice: Choice) -> tuple[Block, ...]:
    content: list[Block] = []
    for block in blocks(choice):
        if isinstance(block, ToolCall):
            content.append(_tool_use(block, cut=choice.reason is FinishReason.LENGTH))
        elif block[0] == "reasoning":
            content.append(wire.ThinkingBlock(block[1]))
        elif content and isinstance(content[-1], wire.TextBlock):  # a refusal is text
            content[-1] = wire.TextBlock(content[-1].text + block[1])
        else:
            content.append(wire.TextBlock(block[1]))
    return tuple(content)


def _tool_use(call: ToolCall, *, cut: bool) -> wire.ToolUseBlock:
    """A call. One that was `cut` short has no input: an object has no half, and `stop_reason` tells why."""
    arguments = (call.arguments or "{}").encode()
    try:
        msgspec.json.decode(arguments, type=dict)
    except UNREADABLE:
        if not cut:
            raise BackendFailed("The model's call of a tool is not a JSON object.", code="bad_tool_call") from None
        arguments = b"{}"
    return wire.ToolUseBlock(call.id, call.name, msgspec.Raw(arguments))


def _usage(usage: Usage) -> wire.Usage:
    cached = usage.cached_tokens or 0
    return wire.Usage(usage.prompt_tokens - cached, 0, cached, usage.completion_tokens)
