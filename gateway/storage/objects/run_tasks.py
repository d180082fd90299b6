"""The answers in the background that this worker makes: a task for each, as long as nobody has taken the answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from contextlib import suppress

import structlog

from gateway.storage.key_stores import Stores
from gateway.storage.objects.runs import EVENT_END, LEASE, KeyRuns
from gateway.storage.objects.store import TooLarge

log = structlog.get_logger()

_BETWEEN_LOOKS = 0.25
"""Seconds until a task learns that its answer was cancelled, if it has nothing to write meanwhile."""


class Run:
    """One answer that this worker makes.

    Attributes:
        id: the answer's.
        claimed: whether this worker ends it; then nobody else does.
        changed: set when events are written, and replaced by another.

    Args:
        id: the answer's.
        runs: of its key.
        number: of the next event; None: events are not kept.
    """

    def __init__(self, id: str, runs: KeyRuns, number: int | None) -> None:
        self.id = id
        self.claimed = False
        self.changed = asyncio.Event()
        self._runs = runs
        self._number = number
        self._started = False
        self._is_cut = False

    async def start(self) -> bool:
        """Say once that the answer is in progress; returns whether it is still this worker's."""
        self._started = self._started or await self._runs.start(self.id)
        return self._started

    async def write(self, events: bytes) -> bool:
        """Keep events; the last ones of a claimed answer. Returns whether the answer is still this worker's."""
        if self._is_cut:
            return not self.claimed or await self._runs.cut(self.id)
        if self._number is None:
            return not self.claimed or await self._runs.append(self.id, 0, b"", last=True)
        try:
            done = await self._runs.append(self.id, self._number, events, last=self.claimed)
        except TooLarge:
            # Whoever reads them is cut off; the answer itself is stored.
            log.warning("run.events_too_large", id=self.id, events=self._number)
            self._is_cut = True
            return await self.write(events)
        self._number += events.count(EVENT_END)
        self.changed.set()
        self.changed = asyncio.Event()
        return done

    async def claim(self) -> bool:
        """Have this worker alone end the answer; returns whether it may."""
        self.claimed = self.claimed or (await self.start() and await self._runs.claim(self.id))
        return self.claimed

    async def renew(self) -> None:
        """Have the answer expire later, as long as it is made."""
        await self._runs.renew(self.id)

    async def is_taken(self) -> bool:
        """Whether the answer is not this worker's any more."""
        return not self.claimed and not await self._runs.is_running(self.id)


class RunTasks:
    """All of them.

    Attributes:
        tasks: those that the server waits for before it ends.

    Args:
        stores: where leases are.
    """

    def __init__(self, stores: Stores) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._stores = stores
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        self._watch: asyncio.Task[None] | None = None

    def start(self, run: Run, work: Coroutine[object, object, None]) -> None:
        """Make an answer in a task of its own."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        self._runs[run.id] = (run, task)
        task.add_done_callback(lambda done: self._forget(run.id, done))
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look())

    async def wait(self, id: str, seconds: float) -> None:
        """Wait for events of an answer: until this worker writes some, or so many seconds."""
        known = self._runs.get(id)
        if known is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await known[0].changed.wait()

    async def aclose(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        tasks = [task for _, task in self._runs.values()]
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, id: str, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._runs.pop(id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run.broke", id=id, error=type(error).__name__)

    async def _look(self) -> None:
        """Renew the lease and the answers, and cancel tasks whose answers were taken, as long as there are tasks."""
        looks = 0
        while self._runs:
            try:
                if looks % int(LEASE / 4 / _BETWEEN_LOOKS) == 0:
                    await self._stores.renew()
                    for run, _ in [*self._runs.values()]:
                        await run.renew()
                for run, task in [*self._runs.values()]:
                    if await run.is_taken():
                        task.cancel()
            except (OSError, sqlite3.Error) as error:
                log.error("run.not_watched", error=str(error))
            looks += 1
            await asyncio.sleep(_BETWEEN_LOOKS)
