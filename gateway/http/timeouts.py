"""Time-outs that clients ask for: of an answer's begin, and of answers that end at one instead of failing.

The latter are Databricks' `error_behavior: "truncate"`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import inf

import structlog

from schemas.errors import BackendTimeout, InvalidRequest
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Generate, Started, Usage

log = structlog.get_logger()

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that a client waits for the beginning of its answer: what it no longer waits for is not begun."""


def seconds_of(given: str) -> float:
    """The value of `TIMEOUT_HEADER`.

    Raises:
        schemas.errors.InvalidRequest: it is no number above 0.
    """
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise InvalidRequest(f"The header '{TIMEOUT_HEADER}' must be a number of seconds above 0.")
    return seconds


async def until_timeout(events: AsyncGenerator[Events, None], request: Generate) -> AsyncGenerator[Events, None]:
    """The events of a backend; if it times out after its first event, what it sent so far is a complete answer.

    Raises:
        schemas.errors.GatewayError: the backend's, and a time-out before its first event: there is nothing to keep.
    """
    started: Started | None = None
    finished: set[int] = set()
    generated = 0
    try:
        async for batch in events:
            for event in batch:
                if isinstance(event, Started):
                    started = event
                elif isinstance(event, Delta):
                    generated += len(event.tokens) or bool(event.text or event.reasoning or event.tool_calls)
                    finished |= {event.choice} if isinstance(event, Finished) else set()
            yield batch
    except BackendTimeout:
        if started is None:
            raise
        log.warning("answer.truncated", request_id=request.id, completion_tokens=generated)
        choices = set(range(len(request.prompts) * request.n)) - finished
        ends: list[Event] = [Finished(choice=choice, reason=FinishReason.LENGTH) for choice in sorted(choices)]
        yield (*ends, Usage(started.prompt_tokens or 0, generated))
    finally:
        await events.aclose()
