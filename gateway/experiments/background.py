"""Work that nobody waits for: so much of it at a time for an arm, each piece for so long; what is over is not begun.

Nothing of it can be seen in an answer. Not a queue: there is no waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from backends.base import check
from gateway.errors import to_client_error
from gateway.routing.target import Target
from schemas.errors import Incomplete
from schemas.ir import Events, Generate, Usage


class Background:
    """One worker's, of one kind.

    Args:
        ready: whether a backend can answer now.
    """

    def __init__(self, ready: Callable[[str], bool]) -> None:
        self._ready = ready
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
        """Begin a piece of work for an arm that has room and can answer.

        Args:
            arm: for whom.
            work: does it.
            ended: told how it ended: "ok", "timeout", "cancelled", an error's kind, or "dropped" if it was not begun.
            at_once: pieces that may be under way for this arm.
            seconds: that a piece may take.
        """
        name = (arm.endpoint, arm.entity.name)
        if self._running[name] >= at_once or not self._ready(arm.entity.backend):
            ended("dropped")
            return
        self._running[name] += 1
        task = asyncio.create_task(self._run(name, work, ended, seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Stop all of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self, name: tuple[str, str], work: Callable[[], Awaitable[None]], ended: Callable[[str], None], seconds: float
    ) -> None:
        outcome = "cancelled"
        try:
            async with asyncio.timeout(seconds):
                await work()
            outcome = "ok"
        except TimeoutError:
            outcome = "timeout"
        except Exception as error:  # a stream loop: there is nobody to tell
            outcome = to_client_error(error, "background").kind
        finally:
            self._running[name] -= 1
            ended(outcome)


async def read(request: Generate, target: Target, take: Callable[[Events], None]) -> None:
    """Ask, and give the whole answer to `take`.

    Raises:
        schemas.errors.GatewayError: there is none.
    """
    check(request, target.backend.capabilities, request.model)
    events = target.backend.generate(target.addressed(request))
    last = None
    try:
        async for batch in events:
            last = batch[-1]
            take(batch)
    finally:
        await events.aclose()
    if not isinstance(last, Usage):
        raise Incomplete("The backend's answer stopped before it was finished.")
