"""Copies of requests, for arms that never answer: what they say is read to the end and thrown away.

A copy shares nothing with the request but its content. It waits for nobody and nobody waits for it: what is over an
arm's limit is not sent, and the live arm's answer neither shows nor depends on how a copy fares.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from backends.base import check
from gateway.config import Shadow
from gateway.experiment import Experiment
from gateway.failures import shown
from gateway.metrics import Metrics
from gateway.router import Target
from schemas.errors import Incomplete
from schemas.ir import Generate, Usage


class Shadows:
    """One worker's copies under way.

    Args:
        metrics: counts them, by outcome.
        ready: whether a backend can answer now.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._ready = ready
        self._running: Counter[tuple[str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, request: Generate, targets: tuple[Target, ...], experiment: Experiment) -> None:
        """Send a copy to each of these arms that has room and can answer."""
        for target in targets:
            limits, arm = target.entity.shadow, (target.endpoint, target.entity.name)
            assert limits is not None
            if self._running[arm] >= limits.max_concurrent_requests or not self._ready(target.entity.backend):
                self._metrics.shadowed(*arm, "dropped")
                continue
            self._running[arm] += 1
            copy = replace(request, id=f"{request.id}-{target.entity.name}")
            task = asyncio.create_task(self._run(copy, target, limits, experiment))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Stop all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, copy: Generate, target: Target, limits: Shadow, experiment: Experiment) -> None:
        arm, outcome = (target.endpoint, target.entity.name), "cancelled"
        try:
            async with asyncio.timeout(limits.timeout):
                await _read(copy, target)
            outcome = "ok"
        except TimeoutError:
            outcome = "timeout"
        except Exception as error:  # a stream loop: there is nobody to tell
            outcome = shown(error, copy.id).kind
        finally:
            self._running[arm] -= 1
            self._metrics.shadowed(*arm, outcome)
            experiment.shadowed(target)


async def _read(copy: Generate, target: Target) -> None:
    check(copy, target.backend.capabilities, copy.model)
    events = target.backend.generate(target.addressed(copy))
    last = None
    try:
        async for batch in events:
            last = batch[-1]
    finally:
        await events.aclose()
    if not isinstance(last, Usage):
        raise Incomplete("The backend's answer stopped before it was finished.")
