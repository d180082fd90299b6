"""Bounded best-effort tasks per arm: a limit at a time and a timeout each; excess work is dropped.

Answers to clients neither wait for it nor depend on it. Not a queue: nothing waits for room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from backends.features import check
from backends.observation import OBSERVER
from gateway.errors import to_client_error
from gateway.routing.target import Target
from schemas.errors import Incomplete
from schemas.ir import Events, Generate, Usage


class Background:
    """One worker's tasks of one kind.

    Args:
        can_answer: whether a backend, by name, can answer now.
    """

    def __init__(self, can_answer: Callable[[str], bool]) -> None:
        self._can_answer = can_answer
        self._running: Counter[tuple[str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        arm: Target,
        work: Callable[[], Awaitable[None]],
        ended: Callable[[str], None],
        *,
        at_once: int,
        seconds: float,
    ) -> None:
        """Start a task for an arm, unless it has its limit of tasks or cannot answer.

        Args:
            arm: for whom.
            work: does it.
            ended: called with the outcome: "ok", "timeout", "cancelled", an error's kind, or "dropped" if not started.
            at_once: the arm's limit of tasks at a time.
            seconds: the task's timeout.
        """
        name = (arm.endpoint, arm.entity.name)
        # No `await` between the check and the count below, so the limit holds. It is per worker.
        if self._running[name] >= at_once or not self._can_answer(arm.entity.backend):
            ended("dropped")
            return
        self._running[name] += 1
        task = asyncio.create_task(self._run(name, work, ended, seconds))
        # The event loop holds tasks weakly: without this reference one could be collected while it runs.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self, name: tuple[str, str], work: Callable[[], Awaitable[None]], ended: Callable[[str], None], seconds: float
    ) -> None:
        OBSERVER.set(None)  # a request's listener counts what its client gets, and this is not
        outcome = "cancelled"  # stays for CancelledError, which is no `Exception` and is not caught
        try:
            async with asyncio.timeout(seconds):
                await work()
            outcome = "ok"
        except TimeoutError:
            outcome = "timeout"
        except Exception as error:  # the task's top: nobody else would see it
            outcome = to_client_error(error, "background").kind
        finally:
            self._running[name] -= 1
            ended(outcome)


async def read(request: Generate, target: Target, take: Callable[[Events], None]) -> None:
    """Generate, and pass every batch of events to `take`.

    Raises:
        schemas.errors.GatewayError: the answer failed, or stopped before its end.
    """
    check(request, target.backend.capabilities, request.model)
    events = target.backend.generate(target.addressed(request))
    last = None
    try:
        async for batch in events:
            last = batch[-1]
            take(batch)
    finally:
        # Also after a timeout: the backend must drop the work of an answer that nobody reads.
        await events.aclose()
    # A complete answer ends with its usage; a generator that just ends was cut off.
    if not isinstance(last, Usage):
        raise Incomplete("The backend's answer stopped before it was finished.")
