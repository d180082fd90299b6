"""Answers of `/v1/responses`: one JSON object, or a stream of typed events.

A stream ends with `response.completed` or `response.incomplete` if and only if `Usage` was fed, and with
`response.failed` after an error. Every event has a sequence number and names the place of its item in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from adapters.base import Record, Reply
from adapters.blocks import Blocks, Opened, Said
from adapters.calls import written_signature
from adapters.fold import Kind, blocks
from adapters.formats.sse import guard
from adapters.openai.inbound.logprobs import chat_logprobs
from adapters.openai.inbound.stream import STREAM_HEADERS, STREAM_TYPE
from adapters.openai.responses.relayed import RelayedEvents, relayed_body
from adapters.openai.responses.response import INCOMPLETE_REASONS, ended, new_response, record_of
from adapters.optional import Opening
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError, RateLimited, RequestError
from schemas.ir import (
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Relayed,
    Started,
    Token,
    Tokens,
    ToolCall,
    ToolDelta,
    Usage,
)
from schemas.openai import responses as wire
from schemas.openai.answers import TokenLogprob

Logprobs = tuple[TokenLogprob, ...]

_json = msgspec.json.Encoder().encode

_EVENTS: dict[Kind | None, str] = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning": "response.reasoning_text",
    None: "response.function_call_arguments",
}
"""The kind of the open block (None: a tool call) -> the prefix of its events' types."""
_BEGINNINGS = ("response.created", "response.queued")
_ENDS = ("response.completed", "response.incomplete")


def encode_response(request: Generate, answer: Completion, now: int) -> Reply:
    """The whole answer to `request`; `now` is Unix time in seconds."""
    if answer.relayed is not None:
        body = relayed_body(request, answer)
        return Reply(body, record=record_of(request, body))
    choice = answer.choices[0]
    response = new_response(request, answer.model, now, _output(request, choice))
    response = ended(response, choice.reason, answer.usage, now)
    # Encoded once: what is stored is byte for byte what the client got.
    body = _json(response)
    return Reply(body, record=record_of(request, body))


def encode_token_count(answer: Tokens) -> Reply:
    """The answer of `/v1/responses/input_tokens`."""
    return Reply(_json(wire.InputTokens(len(answer.spans))))


class ResponseWriter:
    """Writer of one streamed response.

    Args:
        request: the request that is answered.
        now: clock that gives Unix time in seconds.
    """

    media_type = STREAM_TYPE
    headers = STREAM_HEADERS
    status_waits = False
    abort_after_error = False

    def __init__(self, request: Generate, now: Callable[[], float]) -> None:
        self._request = request
        self._now = now
        self._created = int(now())
        self._model = request.model
        self._sequence_number = 0
        self._output: list[wire.Output] = []  # the items that have ended
        self._blocks = Blocks()
        self._relayed: RelayedEvents | None = None
        self._reason = FinishReason.EOS
        # Tokens may arrive before their text (half a character), so they wait for the delta that covers them.
        self._unreported: list[Token] = []  # tokens whose log-probabilities no event has reported yet
        self.record: Record | None = None
        # The open item: its block, its text so far, its log-probabilities, and the fields that locate it in events.
        self._open = Opened(None)
        self._texts: list[str] = []
        self._logprobs: Logprobs = ()
        self._location: dict[str, Any] = {}

    def open(self) -> Opening:
        """The queued response, which a response in the background begins as."""
        queued = msgspec.structs.replace(self._snapshot(), status="queued")
        body = _json(queued)
        record = record_of(self._request, body)
        assert record is not None  # `decode` refuses what cannot be stored
        events = self._event("response.created", response=queued) + self._event("response.queued", response=queued)
        return Opening(record, self._sequence_number, events, Reply(body))

    def feed(self, events: Events) -> bytes:
        """The protocol's events for a batch of ours."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relay(event.data, out)
            elif self._relayed is not None:
                continue  # what a relayed event says
            elif isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                self._model = event.model
                # OpenAI sends both, one after the other.
                response = self._snapshot()
                if self._request.detached:
                    self.record = record_of(self._request, _json(response))
                else:
                    out.append(self._event("response.created", response=response))
                out.append(self._event("response.in_progress", response=response))
            elif isinstance(event, Usage):
                response = ended(self._snapshot(), self._reason, event, int(self._now()))
                # Set before the bytes of the terminal event are returned: the gateway stores it before it sends them,
                # so a client that continues the conversation at once finds it.
                self.record = record_of(self._request, _json(response))
                out.append(self._event(f"response.{response.status}", response=response))
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The event that ends the stream with an error."""
        failure = wire.Failure(_error_code(error), error.message)
        if self._relayed is not None:
            response: Any = self._relayed.failed(failure)
        else:
            response = msgspec.structs.replace(self._snapshot(), status="failed", error=failure)
        if self._request.detached:
            self.record = record_of(self._request, _json(response))
        return self._event("response.failed", response=response)

    def _relay(self, data: bytes, out: list[bytes]) -> None:
        """Write a remote's event."""
        self._relayed = self._relayed or RelayedEvents(self._request)
        type, fields = self._relayed.read(data)
        detached = self._request.detached
        if "response" in fields and (detached or type in _ENDS):
            self.record = record_of(self._request, _json(fields["response"]))
        # Of a response in the background, `open` has written the first ones.
        if not (detached and type in _BEGINNINGS):
            out.append(self._write(type, fields | {"sequence_number": self._sequence_number}))

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        if self._request.logprobs:
            self._unreported += delta.tokens
        if isinstance(delta, Finished):
            # Before the steps: the status of the last item depends on it.
            self._reason = delta.reason
        for step in self._blocks.feed(delta):
            if isinstance(step, Said):
                self._extend_item(step.text, out)
            elif isinstance(step, Opened):
                self._open_item(step, out)
            else:
                self._close_item(out, last=step.last)

    def _open_item(self, opened: Opened, out: list[bytes]) -> None:
        self._open, self._texts, self._logprobs = opened, [], ()
        index, item = len(self._output), self._item("in_progress")
        self._location = {"item_id": item.id, "output_index": index}
        out.append(self._event("response.output_item.added", output_index=index, item=item))
        # A tool call has no content parts.
        if opened.kind is not None:
            self._location["content_index"] = 0
            out.append(self._event("response.content_part.added", **self._location, part=_part(opened.kind, "")))

    def _extend_item(self, text: str, out: list[bytes]) -> None:
        kind = self._open.kind
        self._texts.append(text)
        # Only text parts have log-probabilities in the protocol.
        scored = {"logprobs": self._report_tokens(_covering(self._unreported, text))} if kind == "text" else {}
        out.append(self._event(f"{_EVENTS[kind]}.delta", **self._location, delta=text, **scored))

    def _close_item(self, out: list[bytes], *, last: bool) -> None:
        """End the open item. The `last` item of all reports the tokens that remain (half a character, or no text)."""
        kind, call = self._open
        if last and kind == "text" and (rest := self._report_tokens(len(self._unreported))):
            out.append(self._event(f"{_EVENTS[kind]}.delta", **self._location, delta="", logprobs=rest))
        text = "".join(self._texts)
        done = f"{_EVENTS[kind]}.done"
        if call is not None:
            out.append(self._event(done, **self._location, arguments=text, name=call.name or ""))
        elif kind is not None:
            content = {"refusal": text} if kind == "refusal" else {"text": text}
            scored = {"logprobs": self._logprobs} if kind == "text" else {}
            out.append(self._event(done, **self._location, **content, **scored))
            part = _part(kind, text, self._logprobs)
            out.append(self._event("response.content_part.done", **self._location, part=part))
        # Before the append: the item's index is the number of items that have ended. Only the last one can be cut off.
        item = self._item("incomplete" if last and self._reason in INCOMPLETE_REASONS else "completed")
        out.append(self._event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)

    def _report_tokens(self, count: int) -> Logprobs:
        """The log-probabilities of the next `count` tokens, which become part of the open item."""
        logprobs = _token_logprobs(self._request, self._unreported[:count])
        del self._unreported[:count]
        self._logprobs += logprobs
        return logprobs

    def _item(self, status: str) -> wire.Output:
        """The open item as it is now."""
        (kind, call), index, text = self._open, len(self._output), "".join(self._texts)
        if call is not None:
            return _call_item(self._request, index, call, call.index, text, status)
        return _text_item(self._request, index, str(kind), text, self._logprobs, status)

    def _snapshot(self) -> wire.Response:
        """The response in progress, with the items that have ended."""
        # Events with a `response` have all of its fields: clients take each as the whole response so far.
        return new_response(self._request, self._model, self._created, tuple(self._output))

    def _event(self, type: str, **fields: Any) -> bytes:
        return self._write(type, {"type": type, "sequence_number": self._sequence_number} | fields)

    def _write(self, type: str, fields: dict[str, Any]) -> bytes:
        # The sequence number orders events for clients that reconnect; it counts all events from 0.
        self._sequence_number += 1
        data = guard(_json(fields))
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


# --- output items -------------------------------------------------------------------------------------------------


def _output(request: Generate, choice: Choice) -> tuple[wire.Output, ...]:
    """The items of a whole answer. Tokens go to the text blocks in order; the last block takes all that remain."""
    items: list[wire.Output] = []
    answered, tokens, calls = list(blocks(choice)), choice.tokens, 0
    for index, block in enumerate(answered):
        if isinstance(block, ToolCall):
            items.append(_call_item(request, index, block, calls, block.arguments))
            calls += 1
        elif block[0] == "text":
            count = len(tokens) if index == len(answered) - 1 else _covering(tokens, block[1])
            items.append(_text_item(request, index, *block, _token_logprobs(request, tokens[:count])))
            tokens = tokens[count:]
        else:
            items.append(_text_item(request, index, *block))
    return tuple(items)


def _call_item(
    request: Generate,
    index: int,
    call: ToolCall | ToolDelta,
    call_index: int,
    arguments: str,
    status: str = "completed",
) -> wire.FunctionCall:
    """The item of a tool call, the `index`-th of the output and the `call_index`-th of the calls."""
    return wire.FunctionCall(
        id=_item_id("fc", request, index),
        status=status,
        arguments=arguments,
        call_id=call.id or _item_id("call", request, call_index),
        name=call.name or "",
        extra_content=written_signature(call.signature),
    )


def _text_item(
    request: Generate, index: int, kind: str, text: str, logprobs: Logprobs = (), status: str = "completed"
) -> wire.Message | wire.Thought:
    """The item of a text, reasoning or a refusal. It has content once it has ended."""
    part = _part(kind, text, logprobs)
    has_ended = status != "in_progress"
    if isinstance(part, wire.ReasoningText):
        return wire.Thought(id=_item_id("rs", request, index), status=status, content=(part,) if has_ended else ())
    return wire.Message(id=_item_id("msg", request, index), status=status, content=(part,) if has_ended else ())


def _part(kind: str, text: str, logprobs: Logprobs = ()) -> wire.OutputText | wire.Refusal | wire.ReasoningText:
    if kind == "refusal":
        return wire.Refusal(text)
    return wire.ReasoningText(text) if kind == "reasoning" else wire.OutputText(text=text, logprobs=logprobs)


def _item_id(prefix: str, request: Generate, index: int) -> str:
    return f"{prefix}_{request.id}_{index}"


def _covering(tokens: Sequence[Token], text: str) -> int:
    """How many tokens make up `text`. A token without visible text belongs to the next token that has some."""
    size, count = len(text), 0
    for token in tokens:
        if size <= 0:
            break
        count += 1
        # Special tokens have names, not text.
        size -= 0 if token.special else len(token.text)
    return count


def _token_logprobs(request: Generate, tokens: Sequence[Token]) -> Logprobs:
    logprobs = chat_logprobs(tokens, request.top_logprobs) if request.logprobs else None
    return (logprobs.content or ()) if logprobs is not None else ()


def _error_code(error: GatewayError) -> str:
    """The code of an error in a response. The API has a list of its own, of which these three can occur here."""
    if isinstance(error, RateLimited):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"
