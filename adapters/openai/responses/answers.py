"""Answers of `/v1/responses`, whole and as typed events.

A stream ends with `response.completed` or `response.incomplete` if and only if `Usage` was fed; a failed one with
`response.failed`. Each event is numbered, and carries what its item's place is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from adapters.base import Headers, Record, Reply
from adapters.blocks import Blocks, Opened, Said
from adapters.fold import Kind, blocks
from adapters.openai.inbound.logprobs import chat_logprobs
from adapters.openai.responses.stored import record
from adapters.sse import guard
from schemas import responses as wire
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError, RateLimited, RequestError
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, Token, Tokens, ToolCall, Usage
from schemas.openai.answers import TokenLogprob

_json = msgspec.json.Encoder().encode
_CUT = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}


def whole(request: Generate, answer: Completion, created: int) -> Reply:
    """The whole answer."""
    choice = answer.choices[0]
    said = _response(request, answer.model, created, output=_output(request, choice), usage=_usage(answer.usage))
    said = _ended(said, choice.reason)
    body = _json(said)
    return Reply(body, record=_record(request, said, body))


def counted(answer: Tokens) -> Reply:
    """How many tokens a question has."""
    return Reply(_json(wire.InputTokens(len(answer.spans))))


class ResponseWriter:
    """One stream being written.

    Args:
        request: what is answered.
        created: Unix time in seconds.
    """

    media_type = "text/event-stream"
    headers: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
    abort_after_error = False

    def __init__(self, request: Generate, created: int) -> None:
        self._request = request
        self._created = created
        self._model = request.model
        self._number = 0
        self._output: list[wire.Output] = []
        self._blocks = Blocks()
        self._open = Opened(None)  # the open item, and what was said in it
        self._said: list[str] = []
        self._place: dict[str, Any] = {}
        self._reason = FinishReason.EOS
        self._unscored: list[Token] = []  # those that no event has told yet
        self._scores: tuple[TokenLogprob, ...] = ()  # the open item's
        self.record: Record | None = None

    def feed(self, events: Events) -> bytes:
        """The events that say these events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                self._model = event.model
                began = self._now("in_progress")
                out += [self._event(type, response=began) for type in ("response.created", "response.in_progress")]
            elif isinstance(event, Usage):
                said = msgspec.structs.replace(self._now("completed"), usage=_usage(event))
                ended = _ended(said, self._reason)
                self.record = _record(self._request, ended, _json(ended))
                out.append(self._event(f"response.{ended.status}", response=ended))
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The error as the last event."""
        failure = wire.Failure(_failure_code(error), error.message)
        said = msgspec.structs.replace(self._now("failed"), error=failure)
        return self._event("response.failed", response=said)

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        if self._request.logprobs:
            self._unscored += delta.tokens
        for step in self._blocks.feed(delta):
            if isinstance(step, Said):
                self._say(step.text, out)
            elif isinstance(step, Opened):
                self._begin(step, out)
            else:
                self._close(out, last=step.last)
        if isinstance(delta, Finished):
            self._reason = delta.reason

    def _say(self, text: str, out: list[bytes]) -> None:
        kind = self._open.kind
        self._said.append(text)
        more = {"logprobs": self._score(_covering(self._unscored, text))} if kind == "text" else {}
        out.append(self._event(f"{_TOLD[kind]}.delta", **self._place, delta=text, **more))

    def _score(self, count: int) -> tuple[TokenLogprob, ...]:
        """Tell the next tokens' log-probabilities, as the open text's."""
        new = _logprobs(self._request, self._unscored[:count])
        del self._unscored[:count]
        self._scores += new
        return new

    def _begin(self, opened: Opened, out: list[bytes]) -> None:
        self._open, self._said, self._scores = opened, [], ()
        place, item = len(self._output), self._item("in_progress")
        self._place = {"item_id": item.id, "output_index": place}
        out.append(self._event("response.output_item.added", output_index=place, item=item))
        if opened.kind is not None:
            self._place["content_index"] = 0
            out.append(self._event("response.content_part.added", **self._place, part=_part(opened.kind, "")))

    def _close(self, out: list[bytes], *, last: bool) -> None:
        kind, call = self._open
        if last and kind == "text" and (rest := self._score(len(self._unscored))):  # of half a character, or of no text
            out.append(self._event(f"{_TOLD[kind]}.delta", **self._place, delta="", logprobs=rest))
        text = "".join(self._said)
        if call is not None:
            out.append(self._event(f"{_TOLD[kind]}.done", **self._place, arguments=text, name=call.name or ""))
        elif kind is not None:
            said = {"refusal": text} if kind == "refusal" else {"text": text}
            more = {"logprobs": self._scores} if kind == "text" else {}
            out.append(self._event(f"{_TOLD[kind]}.done", **self._place, **said, **more))
            part = _part(kind, text, self._scores)
            out.append(self._event("response.content_part.done", **self._place, part=part))
        item = self._item("completed")
        out.append(self._event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)

    def _item(self, status: str) -> wire.Output:
        text = "".join(self._said)
        (kind, call), place = self._open, len(self._output)
        if call is not None:
            id, call_id = _item_id("fc", self._request, place), call.id or _item_id("call", self._request, call.index)
            return wire.FunctionCall(id=id, status=status, arguments=text, call_id=call_id, name=call.name or "")
        done = status == "completed"
        if kind == "reasoning":
            thoughts = (wire.ReasoningText(text),) if done else ()
            return wire.Thought(id=_item_id("rs", self._request, place), status=status, content=thoughts)
        id = _item_id("msg", self._request, place)
        return (
            _message(id, status, _part(str(kind), text, self._scores)) if done else wire.Message(id=id, status=status)
        )

    def _now(self, status: str) -> wire.Response:
        said = _response(self._request, self._model, self._created, output=tuple(self._output))
        return msgspec.structs.replace(said, status=status)

    def _event(self, type: str, **fields: Any) -> bytes:
        data = guard(_json({"type": type, "sequence_number": self._number} | fields))
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


def _failure_code(error: GatewayError) -> str:
    """What an error is called in a response: it has a list of its own, of which these can happen here."""
    if isinstance(error, RateLimited):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"


_TOLD: dict[Kind | None, str] = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning": "response.reasoning_text",
    None: "response.function_call_arguments",
}


def _part(
    kind: str, text: str, scores: tuple[TokenLogprob, ...] = ()
) -> wire.OutputText | wire.Refusal | wire.ReasoningText:
    if kind == "refusal":
        return wire.Refusal(text)
    return wire.ReasoningText(text) if kind == "reasoning" else wire.OutputText(text=text, logprobs=scores)


def _covering(tokens: Sequence[Token], text: str) -> int:
    """How many of the tokens a text is made of; those without text belong to the next one that has some."""
    size, count = len(text), 0
    for token in tokens:
        if size <= 0:
            break
        count += 1
        size -= 0 if token.special else len(token.text)
    return count


def _logprobs(request: Generate, tokens: Sequence[Token]) -> tuple[TokenLogprob, ...]:
    told = chat_logprobs(tokens, request.top_logprobs) if request.logprobs else None
    return (told.content or ()) if told is not None else ()


def _record(request: Generate, said: wire.Response, body: bytes) -> Record | None:
    """What is to be kept of an answer, if anything is."""
    return None if request.stored_items is None else record(said.id, body, request.stored_items)


def _message(id: str, status: str, part: wire.OutputText | wire.Refusal | wire.ReasoningText) -> wire.Message:
    assert not isinstance(part, wire.ReasoningText)
    return wire.Message(id=id, status=status, content=(part,))


def _item_id(prefix: str, request: Generate, place: int) -> str:
    return f"{prefix}_{request.id}_{place}"


def _output(request: Generate, choice: Choice) -> tuple[wire.Output, ...]:
    items: list[wire.Output] = []
    said, unscored, calls = list(blocks(choice)), choice.tokens, 0
    for place, block in enumerate(said):
        if isinstance(block, ToolCall):
            items.append(_call(request, block, place, calls))
            calls += 1
        elif block[0] == "text":
            count = len(unscored) if place == len(said) - 1 else _covering(unscored, block[1])
            items.append(_block(request, "text", block[1], place, _logprobs(request, unscored[:count])))
            unscored = unscored[count:]
        else:
            items.append(_block(request, *block, place))
    return tuple(items)


def _call(request: Generate, call: ToolCall, place: int, index: int) -> wire.FunctionCall:
    id, call_id = _item_id("fc", request, place), call.id or _item_id("call", request, index)
    return wire.FunctionCall(id=id, status="completed", arguments=call.arguments, call_id=call_id, name=call.name)


def _block(request: Generate, kind: Kind, text: str, place: int, scores: tuple[TokenLogprob, ...] = ()) -> wire.Output:
    if kind == "reasoning":
        id, thoughts = _item_id("rs", request, place), (wire.ReasoningText(text),)
        return wire.Thought(id=id, status="completed", content=thoughts)
    return _message(_item_id("msg", request, place), "completed", _part(kind, text, scores))


def _ended(said: wire.Response, reason: FinishReason) -> wire.Response:
    """Completed, or incomplete and why; then its last item is incomplete too."""
    cut = _CUT.get(reason)
    if cut is None:
        return said
    output = said.output
    if output:
        output = (*output[:-1], msgspec.structs.replace(output[-1], status="incomplete"))
    return msgspec.structs.replace(said, status="incomplete", incomplete_details=wire.Incomplete(cut), output=output)


def _response(
    request: Generate, model: str, created: int, *, output: tuple[wire.Output, ...], usage: wire.Usage | None = None
) -> wire.Response:
    asked = msgspec.json.decode(request.origin.body if request.origin else b"{}", type=dict[str, msgspec.Raw])
    told = {name: msgspec.json.decode(value) for name, value in asked.items() if name in _TOLD_AGAIN}
    sampling = request.sampling
    return wire.Response(
        id=f"resp_{request.id}",
        created_at=created,
        status="completed",
        instructions=told.get("instructions"),
        max_output_tokens=request.stopping.max_new_tokens,
        model=model,
        output=output,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=told.get("previous_response_id"),
        reasoning=wire.Reasoning(request.hints.get("reasoning_effort")),
        service_tier="default",
        store=request.stored_items is not None,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        text=_raw(asked, "text", b'{"format":{"type":"text"}}'),
        tool_choice=told.get("tool_choice") or "auto",
        tools=_raw(asked, "tools", b"[]"),
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        truncation="disabled",
        usage=usage,
        user=request.user,
        metadata=told.get("metadata") or {},
        top_logprobs=told.get("top_logprobs") or 0,
    )


_TOLD_AGAIN = ("instructions", "tool_choice", "metadata", "previous_response_id", "top_logprobs")


def _raw(asked: dict[str, msgspec.Raw], name: str, otherwise: bytes) -> msgspec.Raw:
    given = asked.get(name)
    return msgspec.Raw(otherwise) if given is None or bytes(given) == b"null" else given


def _usage(usage: Usage) -> wire.Usage:
    return wire.Usage(
        usage.prompt_tokens,
        wire.InputDetails(usage.cached_tokens or 0),
        usage.completion_tokens,
        wire.OutputDetails(usage.reasoning_tokens or 0),
        usage.total_tokens,
    )
