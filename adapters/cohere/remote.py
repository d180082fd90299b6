"""Answers of remotes, whole and streamed, decoded to events.

A stream is complete if and only if it has `message-end`. Events and blocks that the IR does not have are skipped.
"""

from __future__ import annotations

from typing import TypeVar

from adapters.base import Reply
from adapters.cohere.dialects import Dialect
from adapters.formats.frames import FrameReader
from adapters.remote_failures import REFUSED, failure_of, malformed, read_error, read_json, retry_after
from schemas import cohere as wire
from schemas.errors import BackendFailed, BackendTimeout, ContextLengthExceeded, GatewayError, Incomplete
from schemas.ir import Delta, Embed, Embeddings, Event, Events, Finished, Generate, Started, ToolDelta, Usage

T = TypeVar("T")

_TOO_LONG = ("too many tokens", "total number of tokens")
_DELTAS = frozenset({"content-start", "content-delta", "tool-plan-delta", "tool-call-start", "tool-call-delta"})


class StreamReader(FrameReader):
    """Reader of one stream. Whatever follows the end of the stream is ignored.

    Args:
        dialect: the remote's dialect.
        request: the request that is answered.
    """

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = request
        self._calls: dict[int, int] = {}  # an event's index -> index of the tool call
        self._count = 0
        self._started = self._ended = False

    def close(self) -> Events:
        """Nothing more: `message-end` was read.

        Raises:
            schemas.errors.Incomplete: it was not.
        """
        if not self._ended:
            raise Incomplete("The backend's answer ended before it was finished.")
        return ()

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if not data or self._ended:
            return
        event = read_json(data, wire.StreamEvent)
        if event.type == "message-start" and not self._started:
            self._started = True
            out.append(Started(self._request.model))
        elif not self._started and event.type in (*_DELTAS, "message-end"):
            raise malformed("an event before message-start")
        delta = event.delta or wire.Delta()
        if event.type in _DELTAS and delta.message is not None:
            self._delta(event, delta.message, out)
        elif event.type == "message-end":
            out += _end(self._dialect, delta.finish_reason, delta.usage)
            self._ended = True

    def _delta(self, event: wire.StreamEvent, message: wire.MessageDelta, out: list[Event]) -> None:
        blocks, calls = _listed(message.content), _listed(message.tool_calls)
        if event.type == "tool-call-start":
            self._calls[event.index] = self._count
            self._count += 1
        elif calls and event.index not in self._calls:
            raise malformed("a piece of a call that was not started")
        found = Delta(
            text="".join(block.text or "" for block in blocks),
            reasoning=(message.tool_plan or "") + "".join(block.thinking or "" for block in blocks),
            tool_calls=tuple(_call(self._calls[event.index], call) for call in calls),
        )
        if found.text or found.reasoning or found.tool_calls:
            out.append(found)


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: the answer is not finished, or malformed.
    """
    answer = read_json(reply.body, wire.Answer)
    message = answer.message
    blocks = message.content or ()
    delta = Delta(
        text="".join(block.text or "" for block in blocks),
        reasoning=(message.tool_plan or "") + "".join(block.thinking or "" for block in blocks),
        tool_calls=tuple(_call(index, call) for index, call in enumerate(message.tool_calls or ())),
    )
    return (Started(request.model), delta, *_end(dialect, answer.finish_reason, answer.usage))


def read_embeddings(request: Embed, reply: Reply) -> Embeddings:
    """The embeddings of an answer.

    Raises:
        schemas.errors.BackendError: the answer is an error, or malformed.
    """
    answer = read_json(reply.body, wire.EmbeddingsAnswer)
    vectors = answer.embeddings.floats
    if vectors is None or len(vectors) != len(request.inputs):
        raise malformed("not one vector for each input")
    return Embeddings(request.model, vectors, _counts(answer.meta))


def read_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status. Its message reaches the client only if the client is at fault."""
    message = read_error(reply.body, wire.ErrorAnswer).message or REFUSED
    if reply.status in (400, 422) and any(sign in message for sign in _TOO_LONG):
        return ContextLengthExceeded(message)
    return failure_of(reply.status, message, retry_after(reply.headers))


def _listed(given: T | tuple[T, ...] | None) -> tuple[T, ...]:
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _call(index: int, call: wire.ToolCall) -> ToolDelta:
    return ToolDelta(index, call.id, call.function.name, call.function.arguments or "")


def _end(dialect: Dialect, word: str | None, usage: wire.Usage | None) -> Events:
    """The last events of an answer.

    Raises:
        schemas.errors.BackendError: the answer failed, or the reason is unknown.
    """
    if word == "ERROR":
        raise BackendFailed("The backend failed while it was answering.", code="upstream_error")
    if word == "TIMEOUT":
        raise BackendTimeout("The backend timed out.")
    reason = dialect.reasons.get(word or "")
    # An unknown reason could be a new kind of failure; it must not pass for a normal end.
    if reason is None:
        raise malformed("an end for an unknown reason")
    counts = _counts(usage)
    return (Finished(reason=reason, generated=counts.completion_tokens), counts)


def _counts(usage: wire.Usage | None) -> Usage:
    usage = usage or wire.Usage()
    tokens = usage.tokens or usage.billed_units or wire.Tokens()
    cached = int(usage.cached_tokens or 0) or None
    return Usage(int(tokens.input_tokens or 0), int(tokens.output_tokens or 0), cached)
