"""Answers of the Responses API, whole and streamed, decoded to events.

A stream is complete if and only if it has `response.completed` or `response.incomplete`. A client of the API gets the
remote's own events; for all others, events and items that the IR does not have are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.base import Reply
from adapters.formats.frames import FrameReader
from adapters.openai.dialects import Dialect
from adapters.openai.remote.failures import event_failure
from adapters.openai.remote.responses.relay import relays
from adapters.openai.remote.tokens import Aligner
from adapters.remote_failures import malformed, read_json
from schemas.errors import GatewayError, Incomplete
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Generate, Relayed, Started, ToolDelta, Usage
from schemas.openai import remote_responses as wire
from schemas.openai.remote import RemoteAnswer, RemoteToken

# Strategy: an item is announced, grows by deltas and is repeated as a whole when it is done. Deltas are read as they
# come; of an item without any, the whole is read, since not all servers stream all kinds of items.
_PREFIX = "response."
_ENDS = ("completed", "incomplete")
"""The statuses of responses that are answers, and the events that end a stream."""
_CALLS = ("function_call", "custom_tool_call")
"""The items that the client answers with a result."""
_REASONS = {"content_filter": FinishReason.CONTENT_FILTER}
"""Why a response is incomplete, if not for its length."""
_MAX_ITEMS = 10_000
"""Items in one answer; a remote that sends more is malformed."""
_BETWEEN_SUMMARIES = "\n\n"

_NO_USAGE = wire.RemoteResponseUsage()
_parts = msgspec.json.Decoder(tuple[wire.RemotePart, ...] | None).decode


class StreamReader(FrameReader):
    """Reader of one stream. Whatever follows the end of the stream is ignored."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:  # noqa: ARG002 - as those of other protocols
        super().__init__()
        self._request = request
        self._relays = relays(request)
        self._early: list[Event] = []  # relayed events before the first response
        self._output = OutputReader(request)
        self._started = self._ended = False

    def close(self) -> Events:
        """Nothing more: the end was read.

        Raises:
            schemas.errors.Incomplete: it was not.
        """
        if not self._ended:
            raise Incomplete("The backend's answer ended before it was finished.")
        return ()

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if not data or self._ended or data == b"[DONE]":
            return
        event = read_json(data, wire.RemoteEvent)
        kind, response = event.type.removeprefix(_PREFIX), event.response
        if (failure := _failure(event)) is not None:
            raise failure
        if self._relays:
            # The IR's first event is `Started`, so what comes before is held back.
            if len(self._early) >= _MAX_ITEMS:
                raise malformed("no response.created")
            self._early.append(Relayed(data))
            if self._started or response is not None:
                out += self._early
                self._early = []
        if response is not None and not self._started:
            self._started = True
            out.append(Started(response.model or self._request.model))
        if not self._started:
            # Servers send what is not of the answer before it, such as limits; a piece of the answer is none of it.
            if event.type.startswith(_PREFIX):
                raise malformed("an event before response.created")
        elif kind in _ENDS and response is not None:
            self._ended = True
            out += self._output.end(kind, response)
        else:
            out += self._output.feed(kind, event)


@dataclass(slots=True, eq=False)
class _Item:
    """An item that was announced: its type, its number if it is a function call, and what has come of it so far."""

    type: str
    call: int | None = None
    has_deltas: bool = False
    summary: int = 0


class OutputReader:
    """Reader of the items of one response."""

    def __init__(self, request: Generate) -> None:
        self._request = request
        self._aligner = Aligner(request.top_logprobs) if request.logprobs else None
        self._items: dict[int, _Item] = {}  # by their index in the output
        self._functions = 0
        self._generated = 0  # a lower bound: a delta counts as a token

    def feed(self, kind: str, event: wire.RemoteEvent) -> Iterator[Event]:
        """The events of an event of the type `kind`, without its prefix."""
        if kind == "output_item.added" and event.item is not None:
            yield from self._announce(event.output_index, event.item)
        elif kind == "output_item.done" and event.item is not None:
            yield from self._whole(event.output_index, event.item)
        elif isinstance(event.delta, str) and (event.delta or event.logprobs):
            yield from self._delta(kind, event, event.delta)

    def end(self, status: str, response: wire.RemoteResponse) -> Iterator[Event]:
        """The last events of an answer with one of the statuses `_ENDS`."""
        if not self._items:
            for index, item in enumerate(response.output or ()):
                yield from self._whole(index, item)
        if status == "incomplete":
            details = response.incomplete_details or wire.RemoteIncomplete()
            # For whatever other reason an answer is cut off, it is not as long as it would be.
            reason = _REASONS.get(details.reason or "", FinishReason.LENGTH)
        else:
            calls = any(item.type in _CALLS for item in self._items.values())
            reason = FinishReason.TOOL_CALL if calls else FinishReason.EOS
        usage = _usage(response.usage or _NO_USAGE, self._generated)
        yield Finished(reason=reason, generated=usage.completion_tokens)
        yield usage

    def _announce(self, index: int, item: wire.RemoteItem) -> Iterator[Event]:
        # The bound keeps the table finite if a server never ends.
        if index in self._items or len(self._items) >= _MAX_ITEMS:
            raise malformed("an item that is repeated or one too many")
        known = self._items[index] = _Item(item.type)
        if item.type == "function_call":
            # Items are numbered together, tool calls of the IR by themselves: item 2 may be call 0.
            known.call = self._functions
            self._functions += 1
            id = item.call_id or f"call_{self._request.id}_{known.call}"
            yield Delta(tool_calls=(ToolDelta(known.call, id, item.name),))

    def _delta(self, kind: str, event: wire.RemoteEvent, text: str) -> Iterator[Event]:
        """What an item gains; nothing of items that the IR does not have."""
        item = self._items.get(event.output_index)
        if kind == "function_call_arguments.delta":
            if item is None or item.call is None:
                raise malformed("a piece of a call that was not started")
            item.has_deltas = True
            yield Delta(tool_calls=(ToolDelta(item.call, arguments=text),))
            return
        if item is None:
            # Some servers do not announce a message.
            item = self._items[event.output_index] = _Item("message")
        if kind == "output_text.delta":
            found = self._text(text, event.logprobs)
        elif kind == "refusal.delta":
            found = Delta(refusal=text)
        elif kind == "reasoning_text.delta":
            found = Delta(reasoning=text)
        elif kind == "reasoning_summary_text.delta":
            found = Delta(reasoning=self._summary(item, event.summary_index or 0, text))
        else:
            return
        item.has_deltas = True
        self._generated += 1
        yield found

    def _whole(self, index: int, item: wire.RemoteItem) -> Iterator[Event]:
        """What an item has beyond what was streamed of it: nothing if anything was."""
        if index not in self._items:
            yield from self._announce(index, item)
        known = self._items[index]
        if known.has_deltas:
            return
        if known.call is not None and isinstance(item.arguments, str) and item.arguments:
            yield Delta(tool_calls=(ToolDelta(known.call, arguments=item.arguments),))
        elif item.type == "message":
            for part in _read_parts(item.content):
                if part.text:
                    yield self._text(part.text, part.logprobs)
                if part.refusal:
                    yield Delta(refusal=part.refusal)
        elif item.type == "reasoning":
            texts = "".join(part.text or "" for part in _read_parts(item.content))
            summary = _BETWEEN_SUMMARIES.join(part.text or "" for part in _read_parts(item.summary))
            if texts or summary:
                yield Delta(reasoning=texts + summary)

    def _text(self, text: str, listed: tuple[RemoteToken, ...] | None) -> Delta:
        return Delta(text=text, tokens=() if self._aligner is None else self._aligner.feed(listed or (), text))

    def _summary(self, item: _Item, index: int, text: str) -> str:
        """A piece of the summary's part `index`."""
        separator = _BETWEEN_SUMMARIES if index > item.summary else ""
        item.summary = index
        return separator + text


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:  # noqa: ARG001 - as for the reader
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.GatewayError: the answer is an error, malformed or not finished.
    """
    response = read_json(reply.body, wire.RemoteResponse)
    if response.error or response.status == "failed":
        raise _error(response.error)
    if response.status not in _ENDS:
        raise Incomplete("The backend's answer was not finished.")
    return (
        *((Relayed(reply.body),) if relays(request) else ()),
        Started(response.model or request.model),
        *OutputReader(request).end(response.status, response),
    )


def _failure(event: wire.RemoteEvent) -> GatewayError | None:
    """The failure that an event tells of; None: it tells of none."""
    if event.type == "response.failed":
        return _error(event.response.error if event.response is not None else None)
    # OpenAI's `error` has its fields at the top level; of other servers and proxies they are in an object.
    if event.type == "error" or (not event.type and event.error):
        return _error(event.error or {"code": event.code, "message": event.message, "param": event.param})
    # A response that was cancelled ends so.
    if event.response is not None and event.response.status in ("failed", "cancelled"):
        return _error(event.response.error)
    return None


def _error(error: Any) -> GatewayError:
    return event_failure(RemoteAnswer(error=error))


def _read_parts(raw: msgspec.Raw) -> tuple[wire.RemotePart, ...]:
    try:
        return _parts(raw) or ()
    except msgspec.DecodeError:
        raise malformed("an item without parts") from None


def _usage(usage: wire.RemoteResponseUsage, generated: int) -> Usage:
    given = usage.input_tokens_details or wire.RemoteInputDetails()
    made = usage.output_tokens_details or wire.RemoteOutputDetails()
    count = generated if usage.output_tokens is None else usage.output_tokens
    return Usage(usage.input_tokens, count, given.cached_tokens, made.reasoning_tokens)
