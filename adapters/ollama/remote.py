"""Answers of remotes, whole and streamed, decoded to events.

A stream is complete if and only if its last line has `done`. A client of the same dialect gets the remote's own lines.
"""

from __future__ import annotations

import msgspec

from adapters.base import Reply
from adapters.body import UNREADABLE
from adapters.formats.frames import FrameReader
from adapters.formats.ndjson import LineReader
from adapters.ollama.dialects import Dialect
from adapters.ollama.outbound import relays
from adapters.openai.remote.tokens import Aligner
from adapters.remote_failures import REFUSED, failure_of, malformed, read_error, read_json, retry_after
from schemas import ollama as wire
from schemas.errors import BackendFailed, ContextLengthExceeded, GatewayError, Incomplete
from schemas.ir import (
    Delta,
    Embed,
    Embeddings,
    Event,
    Events,
    Finished,
    FinishReason,
    Generate,
    Relayed,
    Started,
    Token,
    ToolDelta,
    Usage,
)

_TOO_LONG = ("exceeds the context length", "exceeds context length", "exceeds maximum context length")


class StreamReader(FrameReader):
    """Reader of one stream. Whatever follows the end of the stream is ignored.

    Args:
        dialect: the remote's dialect.
        request: the request that is answered.
        lines: cuts the bytes into lines.
    """

    def __init__(self, dialect: Dialect, request: Generate, lines: LineReader | None = None) -> None:
        super().__init__(lines or LineReader())
        self._dialect = dialect
        self._request = request
        self._relays = relays(dialect, request)
        self._aligner = Aligner(request.top_logprobs) if request.logprobs else None
        self._calls = 0
        self._started = self._ended = False

    def close(self) -> Events:
        """The events of the last line, where it has no end; else none, once the last line was read.

        Raises:
            schemas.errors.Incomplete: it was not.
        """
        out: list[Event] = []
        if not self._ended and _is_json(self._frames.pending):
            self._frame(self._frames.pending, out)
        if not self._ended:
            raise Incomplete("The backend's answer ended before it was finished.")
        return tuple(out)

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if self._ended:
            return
        answer = read_json(data, wire.RemoteAnswer)
        if answer.error is not None:
            raise BackendFailed("The backend failed while it was answering.", code="upstream_error")
        if self._relays:
            out.append(Relayed(data))
        if not self._started:
            self._started = True
            out.append(Started(answer.model or self._request.model, answer.prompt_eval_count))
        self._ended = answer.done
        out += self._deltas(answer)
        if answer.done:
            out += _end(self._dialect, answer, called=bool(self._calls))

    def _deltas(self, answer: wire.RemoteAnswer) -> Events:
        message = answer.message or wire.RemoteMessage()
        text, thinking = message.content or answer.response or "", message.thinking or answer.thinking or ""
        tokens: tuple[Token, ...] = ()
        if self._aligner is not None:
            tokens = self._aligner.feed(answer.logprobs or (), text)
        calls = tuple(map(self._call, message.tool_calls or ()))
        if not (text or thinking or tokens or calls):
            return ()
        return (Delta(text=text, tokens=tokens, reasoning=thinking, tool_calls=calls),)

    def _call(self, call: wire.ToolCall) -> ToolDelta:
        index, self._calls = self._calls, self._calls + 1
        id = call.id or f"call_{self._request.id}_{index}"  # older servers give none
        return ToolDelta(index, id, call.function.name, _arguments(call))


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: the answer is not finished, or malformed.
    """
    # A whole answer is the last line of a stream, and has another limit on its size.
    reader = StreamReader(dialect, request, LineReader(limit=len(reply.body)))
    return (*reader.feed(reply.body.replace(b"\n", b"")), *reader.close())


def read_embeddings(dialect: Dialect, request: Embed, reply: Reply) -> Embeddings:
    """The embeddings of an answer.

    Raises:
        schemas.errors.BackendError: the answer is an error, or malformed.
    """
    relayed = reply.body if relays(dialect, request) else None
    if request.origin is not None and relayed is not None and request.origin.operation == "embeddings":
        older = read_json(reply.body, wire.EmbeddingsAnswer)
        return Embeddings(request.model, (older.embedding,), Usage(0, 0), relayed)
    answer = read_json(reply.body, wire.RemoteEmbeddings)
    if answer.embeddings is None or len(answer.embeddings) != len(request.inputs):
        raise malformed("not one vector for each input")
    return Embeddings(
        answer.model or request.model, answer.embeddings, Usage(answer.prompt_eval_count or 0, 0), relayed
    )


def read_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status. Its message reaches the client only if the client is at fault."""
    message = read_error(reply.body, wire.ErrorAnswer).error or REFUSED
    if any(sign in message for sign in _TOO_LONG):
        return ContextLengthExceeded(message)
    return failure_of(reply.status, message, retry_after(reply.headers))


def _is_json(line: bytes) -> bool:
    """Whether a line without an end is whole."""
    try:
        msgspec.json.decode(line)
    except UNREADABLE:
        return False
    return True


def _end(dialect: Dialect, answer: wire.RemoteAnswer, *, called: bool) -> Events:
    """The last events of an answer.

    Raises:
        schemas.errors.BackendFailed: the reason is unknown.
    """
    # Older servers name no reason. An unknown one could be a new kind of failure; it must not pass for a normal end.
    reason = dialect.remote.reasons.get(answer.done_reason or "stop")
    if reason is None:
        raise malformed("an end for an unknown reason")
    if called and reason is FinishReason.EOS:
        reason = FinishReason.TOOL_CALL
    generated = answer.eval_count or 0
    return (Finished(reason=reason, generated=generated), Usage(answer.prompt_eval_count or 0, generated))


def _arguments(call: wire.ToolCall) -> str:
    """The arguments of a call: the IR has their JSON text."""
    return msgspec.json.encode(call.function.arguments).decode()
