"""Answers of `/api/chat` and `/api/generate`: one JSON object, or a stream with an object on each line.

The last object has `done`, the reason of the end, durations and counts. A stream ends with it if and only if `Usage`
was fed, and with an object that has nothing but `error` after an error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from adapters.base import Headers, Reply, error_headers
from adapters.calls import CUTTING, written_arguments
from adapters.dialect import row_for
from adapters.fold import join_calls, visible_text
from adapters.formats.sse import guard
from adapters.ollama.dialects import Dialect
from adapters.openai.inbound.logprobs import chat_logprobs
from schemas import ollama as wire
from schemas.completion import Completion
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
    Usage,
)
from schemas.openai.answers import TokenLogprob

LINES = "application/x-ndjson"
"""The media type of streams."""

CHAT = "chat"
"""The name of the route whose answers are messages; those of the other one are texts."""

_json = msgspec.json.Encoder().encode
_SECOND = 1_000_000_000  # nanoseconds


def encode_answer(dialect: Dialect, request: Generate, answer: Completion, now: float) -> Reply:
    """The whole answer to `request`. `now` is Unix time in seconds.

    Raises:
        schemas.errors.BackendFailed: the arguments of a tool call are no JSON object, which the protocol requires.
    """
    if answer.relayed is not None:
        return Reply(answer.relayed)
    # The protocol has no `n`: a request from it has one prompt and one choice.
    choice = answer.choices[0]
    first, total = (answer.timings.first_event, answer.timings.total) if answer.timings is not None else (0.0, 0.0)
    body = _object(
        request,
        answer.model,
        now,
        text=visible_text(choice),
        thinking=choice.reasoning,
        calls=_calls(request, choice.tool_calls, choice.reason),
        logprobs=_logprobs(request, choice.tokens),
        done=True,
        done_reason=dialect.wording.done_reasons[choice.reason],
        **_metrics(answer.usage, first, total),
    )
    return Reply(body)


def encode_embeddings(request: Embed, answer: Embeddings) -> Reply:
    """The answer to a request for embeddings, in the form of its route."""
    if answer.relayed is not None:
        return Reply(answer.relayed)
    if request.origin is not None and request.origin.operation == "embeddings":
        return Reply(_json(wire.EmbeddingsAnswer(answer.vectors[0])))
    counted = wire.EmbedAnswer(
        model=answer.model, embeddings=answer.vectors, prompt_eval_count=answer.usage.prompt_tokens
    )
    return Reply(_json(counted))


def empty_answer(model: str, operation: str, now: float) -> Reply:
    """The answer to a request without a prompt, which asks for nothing but a loaded model."""
    request = {"model": model, "created_at": _timestamp(now)}
    said = {"message": {"role": "assistant", "content": ""}} if operation == CHAT else {"response": ""}
    return Reply(_json(request | said | {"done": True, "done_reason": "load"}))


def error_reply(dialect: Dialect, error: GatewayError) -> Reply:
    """The reply to an error."""
    return Reply(_error(error), row_for(dialect.wording.failures, error).status, headers=error_headers(error))


class StreamWriter:
    """Writer of one stream.

    Args:
        dialect: the dialect to speak.
        request: the request that is answered.
        now: clock that gives Unix time in seconds.
    """

    media_type = LINES
    headers: Headers = (("cache-control", "no-cache"),)
    status_waits = True
    abort_after_error = False

    def __init__(self, dialect: Dialect, request: Generate, now: Callable[[], float]) -> None:
        self._dialect = dialect
        self._request = request
        self._now = now
        self._began = now()
        self._first = 0.0  # seconds until the first event
        self._model = request.model
        self._calls: list[ToolDelta] = []
        self._finished: Finished | None = None
        self._relaying = False

    def feed(self, events: Events) -> bytes:
        """The lines for a batch of events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relaying = True
                out.append(event.data)
            elif self._relaying:
                continue  # the remote's own last line is the end
            elif isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Started):
                self._model, self._first = event.model, self._now() - self._began
            elif isinstance(event, Usage):
                out.append(self._end(event))
        # Clients read lines with `str.splitlines` or httpx, which end one at more characters than JSON escapes.
        return b"".join([guard(line) + b"\n" for line in out])

    def fail(self, error: GatewayError) -> bytes:
        """The line that ends the stream with an error."""
        return guard(_error(error)) + b"\n"

    def _delta(self, delta: Delta, out: list[bytes]) -> None:
        if delta.reasoning:
            out.append(self._line(thinking=delta.reasoning))
        text, logprobs = delta.text + delta.refusal, _logprobs(self._request, delta.tokens)
        if text or logprobs:
            out.append(self._line(text=text, logprobs=logprobs))
        self._calls += delta.tool_calls
        if isinstance(delta, Finished):
            self._finished = delta
            # The protocol has whole calls alone, so that they wait for the end of the last one.
            if calls := _calls(self._request, join_calls(tuple(self._calls)), delta.reason):
                out.append(self._line(calls=calls))

    def _line(self, **fields: Any) -> bytes:
        return _object(self._request, self._model, self._now(), **fields)

    def _end(self, usage: Usage) -> bytes:
        reason = FinishReason.EOS if self._finished is None else self._finished.reason
        metrics = _metrics(usage, self._first, self._now() - self._began)
        return self._line(done=True, done_reason=self._dialect.wording.done_reasons[reason], **metrics)


def _object(
    request: Generate,
    model: str,
    now: float,
    *,
    text: str = "",
    thinking: str = "",
    calls: tuple[wire.WrittenCall, ...] = (),
    logprobs: tuple[TokenLogprob, ...] = (),
    done: bool = False,
    done_reason: str = "",
    **metrics: int,
) -> bytes:
    """An answer, or a line of one, in the form of the request's route."""
    if request.origin is not None and request.origin.operation == CHAT:
        return _json(
            wire.ChatAnswer(
                model=model,
                created_at=_timestamp(now),
                message=wire.Said("assistant", text, thinking, calls),
                done=done,
                done_reason=done_reason,
                logprobs=logprobs,
                **metrics,
            )
        )
    return _json(
        wire.GenerateAnswer(
            model=model,
            created_at=_timestamp(now),
            response=text,
            thinking=thinking,
            done=done,
            done_reason=done_reason,
            logprobs=logprobs,
            **metrics,
        )
    )


def _calls(request: Generate, calls: tuple[ToolCall, ...], reason: FinishReason) -> tuple[wire.WrittenCall, ...]:
    return tuple(
        wire.WrittenCall(
            call.id or f"call_{request.id}_{index}",
            wire.WrittenFunction(index, call.name, written_arguments(call, truncated=reason in CUTTING)),
        )
        for index, call in enumerate(calls)
    )


def _logprobs(request: Generate, tokens: tuple[Token, ...]) -> tuple[TokenLogprob, ...]:
    if not request.logprobs or not tokens:
        return ()
    written = chat_logprobs(tokens, request.top_logprobs)
    return () if written is None or written.content is None else written.content


def _metrics(usage: Usage, first: float, total: float) -> dict[str, int]:
    """The counts and durations of the last object; a model that is served is loaded already."""
    return {
        # Never 0: clients divide counts by durations.
        "total_duration": max(1, round(total * _SECOND)),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": max(1, round(first * _SECOND)),
        "eval_count": usage.completion_tokens,
        "eval_duration": max(1, round((total - first) * _SECOND)),
    }


def _timestamp(seconds: float) -> str:
    """A Unix time in the form of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _error(error: GatewayError) -> bytes:
    return _json(wire.ErrorAnswer(error.message))
