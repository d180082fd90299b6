"""What happens in this worker's view, once a second, for all tabs of the console together.

Strategy: one task makes a `Tick` a second while any tab is open, and each part of it is encoded once for all tabs. A
tab that does not take its ticks loses the oldest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from gateway.service import Service

_INTERVAL = 1.0
"""Seconds between two ticks."""
_BACKLOG = 4
"""Ticks that a tab may be late."""


class Tick(msgspec.Struct, frozen=True, eq=False):
    """What a second has brought.

    Attributes:
        number: counts the ticks.
        revision: counts the states of the catalog that this worker has seen.
    """

    number: int
    revision: int


class Feed:
    """The ticks of one worker.

    Args:
        service: what is watched.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tabs: set[asyncio.Queue[Tick]] = set()
        self._task: asyncio.Task[None] | None = None
        self._catalog = service.catalog
        self._revision = 0
        self._number = 0

    async def ticks(self) -> AsyncIterator[Tick]:
        """The ticks from now on, the first at once; ends when the server shuts down."""
        queue: asyncio.Queue[Tick] = asyncio.Queue(_BACKLOG)
        self._tabs.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield self._tick()
            while not self._service.draining:
                with suppress(TimeoutError):
                    yield await asyncio.wait_for(queue.get(), 2 * _INTERVAL)
        finally:
            self._tabs.discard(queue)

    async def _run(self) -> None:
        while self._tabs and not self._service.draining:
            await asyncio.sleep(_INTERVAL)
            self._number += 1
            tick = self._tick()
            for queue in self._tabs:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(tick)
        self._task = None

    def _tick(self) -> Tick:
        self._service.refresh()
        # The catalog is replaced whenever a state, a share or a model changes.
        if self._service.catalog is not self._catalog:
            self._catalog = self._service.catalog
            self._revision += 1
        return Tick(self._number, self._revision)
