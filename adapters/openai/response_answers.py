"""Answers of `/v1/responses`, whole and as typed events.

A stream ends with `response.completed` or `response.incomplete` if and only if `Usage` was fed; a failed one with
`response.failed`. Each event is numbered, and carries what its item's place is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from adapters.base import Headers, Record, Reply
from adapters.openai.logprobs import chat_logprobs
from adapters.openai.stored import STORED, record
from adapters.sse import guard
from schemas import responses as wire
from schemas.errors import GatewayError
from schemas.ir import (
    Choice,
    Completion,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Started,
    Token,
    Tokens,
    ToolDelta,
    Usage,
)
from schemas.openai import TokenLogprob

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
        code: what an error is called.
    """

    media_type = "text/event-stream"
    headers: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
    abort_after_error = False

    def __init__(self, request: Generate, created: int, code: Callable[[GatewayError], str]) -> None:
        self._request = request
        self._created = created
        self._code = code
        self._model = request.model
        self._number = 0
        self._output: list[wire.Output] = []
        self._open: str | int | None = None  # the open item: "text", "refusal", "reasoning", or a call's index
        self._said: list[str] = []
        self._call = ToolDelta(0)
        self._place: dict[str, Any] = {}
        self._reason = FinishReason.EOS
        self._scored: list[Token] = []  # tokens that no event has told yet
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
        failure = wire.Failure(self._code(error), error.message)
        said = msgspec.structs.replace(self._now("failed"), error=failure)
        return self._event("response.failed", response=said)

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        if self._request.logprobs:
            self._scored += delta.tokens
        for kind, text in (("reasoning", delta.reasoning), ("text", delta.text), ("refusal", delta.refusal)):
            if text:
                self._text(kind, text, out)
        for call in delta.tool_calls:
            self._called(call, out)
        if isinstance(delta, Finished):
            self._close(out)
            self._reason = delta.reason

    def _text(self, kind: str, text: str, out: list[bytes]) -> None:
        if self._open != kind:
            self._begin(kind, out)
            out.append(self._event(_BEGAN[kind], **self._place, part=_part(kind, "")))
        self._said.append(text)
        more = {"logprobs": self._new_scores()} if kind == "text" else {}
        out.append(self._event(f"{_TOLD[kind]}.delta", **self._place, delta=text, **more))

    def _new_scores(self) -> tuple[TokenLogprob, ...]:
        """Of the tokens that were not told yet; they are now."""
        new = _logprobs(self._request, self._scored)
        self._scored = []
        self._scores += new
        return new

    def _called(self, call: ToolDelta, out: list[bytes]) -> None:
        if self._open != call.index:
            self._close(out)
            self._call = call
            self._begin(call.index, out)
        if call.arguments:
            self._said.append(call.arguments)
            out.append(self._event(f"{_CALLED}.delta", **self._place, delta=call.arguments))

    def _begin(self, what: str | int, out: list[bytes]) -> None:
        self._close(out)
        self._open, self._said, self._scores = what, [], ()
        place, item = len(self._output), self._item("in_progress")
        self._place = {"item_id": item.id, "output_index": place}
        if not isinstance(what, int):
            self._place["content_index"] = 0
        out.append(self._event("response.output_item.added", output_index=place, item=item))

    def _close(self, out: list[bytes]) -> None:
        kind = self._open
        if kind is None:
            return
        text = "".join(self._said)
        if isinstance(kind, int):
            out.append(self._event(f"{_CALLED}.done", **self._place, arguments=text, name=self._call.name or ""))
        else:
            if kind == "text" and (rest := self._new_scores()):  # of tokens that only end characters, or the text
                out.append(self._event(f"{_TOLD[kind]}.delta", **self._place, delta="", logprobs=rest))
            said = {"refusal": text} if kind == "refusal" else {"text": text}
            more = {"logprobs": self._scores} if kind == "text" else {}
            out.append(self._event(f"{_TOLD[kind]}.done", **self._place, **said, **more))
            part = _part(kind, text, self._scores)
            out.append(self._event(_BEGAN[kind].replace("added", "done"), **self._place, part=part))
        item = self._item("completed")
        out.append(self._event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._open = None

    def _item(self, status: str) -> wire.Output:
        text = "".join(self._said)
        kind, place = self._open, len(self._output)
        if isinstance(kind, int):
            call = self._call
            call_id = call.id or f"call_{self._request.id}_{kind}"
            id = _item_id("fc", self._request, place)
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


_CALLED = "response.function_call_arguments"
_TOLD = {"text": "response.output_text", "refusal": "response.refusal", "reasoning": "response.reasoning_text"}
_BEGAN = dict.fromkeys(_TOLD, "response.content_part.added")


def _part(
    kind: str, text: str, scores: tuple[TokenLogprob, ...] = ()
) -> wire.OutputText | wire.Refusal | wire.ReasoningText:
    if kind == "refusal":
        return wire.Refusal(text)
    return wire.ReasoningText(text) if kind == "reasoning" else wire.OutputText(text=text, logprobs=scores)


def _logprobs(request: Generate, tokens: Sequence[Token]) -> tuple[TokenLogprob, ...]:
    told = chat_logprobs(tokens, request.top_logprobs) if request.logprobs else None
    return (told.content or ()) if told is not None else ()


def _record(request: Generate, said: wire.Response, body: bytes) -> Record | None:
    """What is to be kept of an answer, if anything is."""
    items = request.hints.get(STORED)
    return None if items is None else record(said.id, body, items)


def _message(id: str, status: str, part: wire.OutputText | wire.Refusal | wire.ReasoningText) -> wire.Message:
    assert not isinstance(part, wire.ReasoningText)
    return wire.Message(id=id, status=status, content=(part,))


def _item_id(prefix: str, request: Generate, place: int) -> str:
    return f"{prefix}_{request.id}_{place}"


def _output(request: Generate, choice: Choice) -> tuple[wire.Output, ...]:
    items: list[wire.Output] = []
    if choice.reasoning:
        id = _item_id("rs", request, len(items))
        items.append(wire.Thought(id=id, status="completed", content=(wire.ReasoningText(choice.reasoning),)))
    for kind, text in (("text", choice.text), ("refusal", choice.refusal)):
        if text:
            scores = _logprobs(request, choice.tokens) if kind == "text" else ()
            items.append(_message(_item_id("msg", request, len(items)), "completed", _part(kind, text, scores)))
    for call in choice.tool_calls:
        id = _item_id("fc", request, len(items))
        items.append(
            wire.FunctionCall(id=id, status="completed", arguments=call.arguments, call_id=call.id, name=call.name)
        )
    return tuple(items)


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
        store=STORED in request.hints,
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
