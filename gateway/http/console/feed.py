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
_MOST_REQUESTS = 40
"""Requests that a tick shows; more cannot be read in a second."""
_BACKLOG = 4
"""Ticks that a tab may be late."""


class Tick(msgspec.Struct, frozen=True, eq=False):
    """What a second has brought.

    Attributes:
        number: counts the ticks.
        revision: counts the states of the catalog that this worker has seen.
        point: the event `live` of a new point of figures; empty without one.
        requests: entries of the request log since the tick before, at most `_MOST_REQUESTS` of them.
    """

    number: int
    revision: int
    point: bytes = b""
    requests: tuple[bytes, ...] = ()


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
        self._point = 0
        self._position: dict[str, int] = {}

    async def ticks(self) -> AsyncIterator[Tick]:
        """The ticks from now on, the first at once; ends when the server shuts down."""
        queue: asyncio.Queue[Tick] = asyncio.Queue(_BACKLOG)
        self._tabs.add(queue)
        if self._task is None:
            # What has happened before is what the tab asks for by itself.
            _, self._position = self._service.requests.since({})
            self._task = asyncio.create_task(self._run())
        try:
            yield self._tick(Tick(self._number, self._revision))
            while not self._service.draining:
                tick = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(2 * _INTERVAL):
                        tick = await queue.get()
                if tick is not None:
                    yield tick
        finally:
            self._tabs.discard(queue)

    async def _run(self) -> None:
        while self._tabs and not self._service.draining:
            await asyncio.sleep(_INTERVAL)
            self._number += 1
            tick = self._tick(self._news())
            for queue in self._tabs:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(tick)
        self._task = None

    def _news(self) -> Tick:
        point = b""
        if self._service.live.number != self._point and self._service.live.points:
            self._point = self._service.live.number
            point = b"event: live\ndata: %b\n\n" % msgspec.json.encode(self._service.live.points[-1])
        found, self._position = self._service.requests.since(self._position, _MOST_REQUESTS)
        return Tick(self._number, self._revision, point, tuple(found[-_MOST_REQUESTS:]))

    def _tick(self, news: Tick) -> Tick:
        self._service.refresh()
        # The catalog is replaced whenever a state, a share or a model changes.
        if self._service.catalog is not self._catalog:
            self._catalog = self._service.catalog
            self._revision += 1
        return msgspec.structs.replace(news, revision=self._revision)
