"""Answers that end at a time-out instead of failing: Databricks' `error_behavior: "truncate"`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import structlog

from schemas.errors import BackendTimeout
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Generate, Started, Usage

log = structlog.get_logger()


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
