"""Answers of `:generateContent`: one JSON object, or a stream of such objects, as events or as a JSON array.

Each object of a stream holds what the candidates gained. The last one has their finish reasons and the counts; it is
written if and only if `Usage` was fed.
"""

from __future__ import annotations

import msgspec

from adapters.base import JSON, Headers, Reply, error_headers
from adapters.calls import CUTTING, written_arguments
from adapters.dialect import row_for
from adapters.fold import blocks, join_calls
from adapters.formats.sse import guard
from adapters.gemini.decode import THOUGHTS
from adapters.gemini.dialects import Dialect
from schemas import gemini as wire
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError
from schemas.ir import (
    Delta,
    Embed,
    Embeddings,
    Events,
    Finished,
    FinishReason,
    Generate,
    Relayed,
    Started,
    Token,
    ToolCall,
    ToolDelta,
    TopToken,
    Usage,
)

_json = msgspec.json.Encoder().encode


def encode_answer(dialect: Dialect, request: Generate, answer: Completion) -> Reply:
    """The whole answer to `request`.

    Raises:
        schemas.errors.BackendFailed: the arguments of a tool call are no JSON object, which the protocol requires.
    """
    if answer.relayed is not None:
        return Reply(answer.relayed)
    candidates = tuple(_candidate(dialect, request, choice) for choice in answer.choices)
    return Reply(_json(_object(request, answer.model, candidates, answer.usage)))


def encode_embeddings(request: Embed, answer: Embeddings) -> Reply:
    """The answer to a request for embeddings, in the form of its route."""
    if answer.relayed is not None:
        return Reply(answer.relayed)
    vectors = tuple(map(wire.Vector, answer.vectors))
    if request.origin is not None and request.origin.operation == "batch_embed":
        return Reply(_json(wire.BatchAnswer(vectors)))
    return Reply(_json(wire.EmbedAnswer(vectors[0])))


def error_reply(dialect: Dialect, error: GatewayError) -> Reply:
    """The reply to an error."""
    return Reply(_error(dialect, error), row_for(dialect.wording.failures, error).status, headers=error_headers(error))


class StreamWriter:
    """Writer of one stream of events. Subclasses frame the objects otherwise.

    Args:
        dialect: the dialect to speak.
        request: the request that is answered.
    """

    media_type = "text/event-stream"
    headers: Headers = (("cache-control", "no-cache"),)
    status_waits = True
    abort_after_error = False

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        self._dialect = dialect
        self._request = request
        self._model = request.model
        self._calls: dict[int, list[ToolDelta]] = {}
        self._finished: list[Finished] = []
        self._relaying = False

    def feed(self, events: Events) -> bytes:
        """The objects for a batch of events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relaying = True
                out.append(self._framed(event.data))
            elif self._relaying:
                if isinstance(event, Usage):
                    out.append(self._last())
            elif isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                self._model = event.model
            elif isinstance(event, Usage):
                ends = tuple(self._end(finished) for finished in self._finished)
                out += [self._framed(_json(_object(self._request, self._model, ends, event))), self._last()]
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The object that ends the stream with an error."""
        return self._framed(_error(self._dialect, error)) + self._last()

    def _framed(self, data: bytes) -> bytes:
        # Line breaks between JSON tokens would end the field; within strings JSON escapes them.
        return b"data: %b\n\n" % guard(data.replace(b"\n", b""))

    def _last(self) -> bytes:
        """What follows the last object."""
        return b""

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        parts = _texts(self._request, delta.reasoning, delta.text + delta.refusal)
        if delta.tool_calls:
            self._calls.setdefault(delta.choice, []).extend(delta.tool_calls)
        if isinstance(delta, Finished):
            self._finished.append(delta)
            # The protocol has whole calls alone, so that they wait for the end of the last one.
            calls = join_calls(tuple(self._calls.pop(delta.choice, ())))
            parts += _calls(self._request, delta.choice, calls, delta.reason)
        logprobs = _logprobs(self._request, delta.tokens)
        if parts or logprobs is not None:
            candidate = wire.Candidate(wire.WrittenContent(parts), delta.choice, logprobs_result=logprobs)
            out.append(self._framed(_json(_object(self._request, self._model, (candidate,), None))))

    def _end(self, finished: Finished) -> wire.Candidate:
        # Google's SDKs read the content of each candidate, also of the last object.
        empty = wire.WrittenContent((wire.WrittenPart(text=""),))
        return wire.Candidate(empty, finished.choice, self._dialect.wording.finish_reasons[finished.reason])


class ArrayWriter(StreamWriter):
    """Writer of one stream as a JSON array, the form of streams without `alt=sse`."""

    media_type = JSON

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__(dialect, request)
        self._begun = False

    def _framed(self, data: bytes) -> bytes:
        before, self._begun = b",\n" if self._begun else b"[", True
        return before + data

    def _last(self) -> bytes:
        return b"]"


def _object(
    request: Generate, model: str, candidates: tuple[wire.Candidate, ...], usage: Usage | None
) -> wire.GenerateAnswer:
    """An answer, or an object of a stream; only the last one has the counts."""
    return wire.GenerateAnswer(candidates, None if usage is None else _usage(usage), model, request.id)


def _candidate(dialect: Dialect, request: Generate, choice: Choice) -> wire.Candidate:
    parts: tuple[wire.WrittenPart, ...] = ()
    calls = [block for block in blocks(choice) if isinstance(block, ToolCall)]
    for block in blocks(choice):
        if not isinstance(block, ToolCall):
            reasoning, text = (block[1], "") if block[0] == "reasoning" else ("", block[1])
            parts += _texts(request, reasoning, text)
    parts += _calls(request, choice.index, tuple(calls), choice.reason)
    logprobs = _logprobs(request, choice.tokens)
    average = None
    if logprobs is not None:
        average = sum(token.log_probability for token in logprobs.chosen_candidates) / len(logprobs.chosen_candidates)
    return wire.Candidate(
        wire.WrittenContent(parts or (wire.WrittenPart(text=""),)),
        choice.index,
        dialect.wording.finish_reasons[choice.reason],
        average,
        logprobs,
    )


def _texts(request: Generate, reasoning: str, text: str) -> tuple[wire.WrittenPart, ...]:
    """The parts of texts. Thoughts are left out, as in the protocol, unless the request asks for them."""
    parts: tuple[wire.WrittenPart, ...] = ()
    if reasoning and THOUGHTS in request.outputs:
        parts += (wire.WrittenPart(text=reasoning, thought=True),)
    return (*parts, wire.WrittenPart(text=text)) if text else parts


def _calls(
    request: Generate, choice: int, calls: tuple[ToolCall, ...], reason: FinishReason
) -> tuple[wire.WrittenPart, ...]:
    return tuple(
        wire.WrittenPart(
            function_call=wire.WrittenCall(
                call.name,
                written_arguments(call, truncated=reason in CUTTING),
                call.id or f"call_{request.id}_{choice}_{index}",
            ),
            thought_signature=call.signature,
        )
        for index, call in enumerate(calls)
    )


def _logprobs(request: Generate, tokens: tuple[Token, ...]) -> wire.LogprobsResult | None:
    """The log-probabilities of tokens; None if none were asked for, or no token has one."""
    chosen = [token for token in tokens if token.logprob is not None and not token.special]
    if not request.logprobs or not chosen:
        return None
    return wire.LogprobsResult(
        tuple(wire.TopCandidates(tuple(_likely(top) for top in token.top[: request.top_logprobs])) for token in chosen),
        tuple(_likely(token) for token in chosen),
    )


def _likely(token: Token | TopToken) -> wire.LogprobsCandidate:
    text = token.text if token.bytes is None else token.bytes.decode(errors="replace")
    # JSON has no infinity; the API writes a token of probability 0 as a very small number, too.
    return wire.LogprobsCandidate(text, token.id, max(token.logprob or 0.0, -1e38))


def _usage(usage: Usage) -> wire.UsageMetadata:
    # The IR counts thoughts within the completion, the protocol beside the candidates.
    thoughts = usage.reasoning_tokens or 0
    return wire.UsageMetadata(
        usage.prompt_tokens,
        usage.completion_tokens - thoughts,
        usage.total_tokens,
        thoughts or None,
        usage.cached_tokens or None,
    )


def _error(dialect: Dialect, error: GatewayError) -> bytes:
    failure = row_for(dialect.wording.failures, error)
    return _json(wire.ErrorAnswer(wire.Error(failure.status, error.message, failure.type)))
