"""Answers of remotes, whole and streamed, decoded to events.

A stream has no end of its own: it is complete if every candidate that it began has a finish reason when the connection
is closed. A client of the same dialect gets the remote's own objects.
"""

from __future__ import annotations

import msgspec

from adapters.base import Reply
from adapters.formats.frames import FrameReader
from adapters.gemini.dialects import Dialect
from adapters.gemini.outbound import relays
from adapters.openai.remote.tokens import Aligner
from adapters.remote_failures import REFUSED, failure_of, malformed, read_error, read_json, retry_after
from schemas import gemini as wire
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
from schemas.openai.remote import RemoteToken, RemoteTop

_TOO_LONG = ("exceeds the maximum number of tokens", "token count")


class StreamReader(FrameReader):
    """Reader of one stream."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = request
        self._relays = relays(dialect, request)
        self._aligners = [Aligner(request.top_logprobs) for _ in range(request.n)] if request.logprobs else []
        self._calls: dict[int, int] = {}  # candidate -> the number of its calls
        self._reasons: dict[int, FinishReason | None] = {}  # of the candidates that have begun
        self._usage = wire.RemoteUsage()
        self._started = False

    def close(self) -> Events:
        """The events that end the stream, once the connection was closed.

        Raises:
            schemas.errors.Incomplete: a candidate has no finish reason.
        """
        if not self._reasons or None in self._reasons.values():
            raise Incomplete("The backend's answer ended before it was finished.")
        usage = self._usage
        thoughts = usage.thoughts_token_count or 0
        generated = (usage.candidates_token_count or 0) + thoughts
        one = len(self._reasons) == 1
        ends = tuple(
            Finished(choice=choice, reason=self._reason(choice), generated=generated if one else None)
            for choice in sorted(self._reasons)
        )
        counts = Usage(
            usage.prompt_token_count or 0,
            generated,
            usage.cached_content_token_count or None,
            thoughts or None,
        )
        return (*ends, counts)

    def whole(self, body: bytes) -> Events:
        """The events of a whole answer, which has the form of one object of a stream."""
        out: list[Event] = []
        self._frame(body, out)
        return (*out, *self.close())

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if not data:
            return
        answer = read_json(data, wire.RemoteAnswer)
        if answer.error is not None:
            raise BackendFailed("The backend failed while it was answering.", code="upstream_error")
        if self._relays:
            out.append(Relayed(data))
        if not self._started:
            self._started = True
            prompt = None if answer.usage_metadata is None else answer.usage_metadata.prompt_token_count
            out.append(Started(answer.model_version or self._request.model, prompt))
        if answer.usage_metadata is not None:
            self._usage = answer.usage_metadata  # counts are cumulative
        # A prompt that was refused has no candidate.
        if answer.prompt_feedback is not None and answer.prompt_feedback.block_reason and not answer.candidates:
            self._reasons[0] = FinishReason.CONTENT_FILTER
        for candidate in answer.candidates:
            self._candidate(candidate, out)

    def _candidate(self, candidate: wire.RemoteCandidate, out: list[Event]) -> None:
        choice = candidate.index
        if not 0 <= choice < self._request.n:
            raise malformed("a candidate that was not asked for")
        self._reasons.setdefault(choice, None)
        parts = candidate.content.parts if candidate.content is not None else ()
        text = "".join(part.text or "" for part in parts if not part.thought)
        reasoning = "".join(part.text or "" for part in parts if part.thought)
        tokens: tuple[Token, ...] = ()
        if self._aligners and candidate.logprobs_result is not None:
            tokens = self._aligners[choice].feed(_listed(candidate.logprobs_result), text)
        calls = tuple(self._call(choice, part, part.function_call) for part in parts if part.function_call is not None)
        if text or reasoning or tokens or calls:
            out.append(Delta(choice, text, tokens, reasoning, tool_calls=calls))
        if candidate.finish_reason is not None:
            reason = self._dialect.remote.reasons.get(candidate.finish_reason)
            # An unknown reason could be a new kind of failure; it must not pass for a normal end.
            if reason is None:
                raise malformed("an end for an unknown reason")
            self._reasons[choice] = reason

    def _call(self, choice: int, part: wire.Part, call: wire.FunctionCall) -> ToolDelta:
        index = self._calls.get(choice, 0)
        self._calls[choice] = index + 1
        arguments = msgspec.json.encode(call.args or {}).decode()
        id = call.id or f"call_{self._request.id}_{choice}_{index}"  # Gemini gives none
        return ToolDelta(index, id, call.name, arguments, part.thought_signature)

    def _reason(self, choice: int) -> FinishReason:
        reason = self._reasons[choice]
        assert reason is not None
        # The protocol has no reason of its own for calls.
        return FinishReason.TOOL_CALL if reason is FinishReason.EOS and self._calls.get(choice) else reason


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: the answer is not finished, or malformed.
    """
    return StreamReader(dialect, request).whole(reply.body)


def read_embeddings(dialect: Dialect, request: Embed, reply: Reply) -> Embeddings:
    """The embeddings of an answer.

    Raises:
        schemas.errors.BackendError: the answer is an error, or malformed.
    """
    answer = read_json(reply.body, wire.RemoteEmbeddings)
    vectors = (answer.embedding,) if answer.embedding is not None else answer.embeddings or ()
    if len(vectors) != len(request.inputs):
        raise malformed("not one vector for each input")
    relayed = reply.body if relays(dialect, request) else None
    return Embeddings(request.model, tuple(vector.values for vector in vectors), Usage(0, 0), relayed)


def read_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status. Its message reaches the client only if the client is at fault."""
    body = reply.body.strip()
    # The error of a stream as an array is an array, too.
    if body.startswith(b"[") and body.endswith(b"]"):
        body = body[1:-1]
    message = read_error(body, wire.ErrorAnswer).error.message or REFUSED
    if reply.status == 400 and any(sign in message for sign in _TOO_LONG):
        return ContextLengthExceeded(message)
    return failure_of(reply.status, message, retry_after(reply.headers))


def _listed(logprobs: wire.RemoteLogprobs) -> tuple[RemoteToken, ...]:
    """The tokens with their alternatives."""
    tops = [*logprobs.top_candidates, *[wire.RemoteTop()] * len(logprobs.chosen_candidates)]
    return tuple(
        RemoteToken(
            chosen.token,
            chosen.log_probability,
            None,
            tuple(RemoteTop(each.token, each.log_probability) for each in top.candidates),
        )
        for chosen, top in zip(logprobs.chosen_candidates, tops, strict=False)
    )
