"""The pace of background lines: behind clients, whatever they ask.

While no client waits for this worker, a number of lines run at a time. While clients do, fewer, and each is followed by
a pause that is many times as long as the CPU time that it took: the worker spends a small share of its time on them.
The time for which the worker waits for a processor does not count as pause: it is neither the clients' nor the lines'.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic, thread_time
from typing import Any, Generic, TypeVar

from gateway.http.batches.clients import Clients

T = TypeVar("T")

_SHARE = 0.002
"""Of the time in which the worker runs or has nothing to do, the part that lines may take while clients are there."""
_ELSEWHERE = 2.0
"""CPU time of a line in all, for each second in its task: its answer is written in a thread, for instance."""
_LONGEST_PAUSE = 5.0
_LOOK = 0.1
"""Seconds between two looks at what clients do, while a line waits."""
_WRITES = 3.0
"""Seconds between two transactions of a batch while clients are there; a lease is longer."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: the nanoseconds for which this thread has run, those for which it has waited for a processor, …"""


class Timed(Generic[T]):
    """Awaits something, and adds up the CPU time that it takes of the event loop's thread."""

    def __init__(self, work: Awaitable[T]) -> None:
        self._work = work
        self.spent = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._work.__await__()
        send: Any = inner.send
        given: Any = None
        while True:
            began = thread_time()
            try:
                waits_for = send(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.spent += thread_time() - began
            try:
                given = yield waits_for
                send = inner.send
            except BaseException as error:
                # A cancellation: the work gets it, and may go on for a while.
                given, send = error, inner.throw


class Pace:
    """Admits lines, in the order in which they ask.

    Args:
        clients: of all workers.
        at_once: lines at a time while no client waits.
        beside: the same while clients do.
    """

    def __init__(self, clients: Clients, at_once: int, beside: int) -> None:
        self._clients = clients
        self._at_once = at_once
        self._beside = beside
        self._running = 0
        self._next = 0.0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def line(self) -> AsyncIterator[None]:
        """Wait until another line may run, and count it while it does."""
        async with self._turn:  # a lock is fair: batches take turns
            while not self._may_begin():
                self._left.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._left.wait()
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._left.set()

    def note(self, spent: float) -> None:
        """Note that a line has taken so many seconds of CPU time in its task."""
        now = _usable_time()
        self._next = max(now, self._next) + min(spent * _ELSEWHERE / _SHARE, _LONGEST_PAUSE)

    @property
    def delay(self) -> float:
        """Seconds between two transactions of a batch, for which answers are gathered."""
        return _WRITES if self._clients.present else 0.0

    def _may_begin(self) -> bool:
        if not self._clients.present:
            self._next = 0.0
            return self._running < self._at_once
        return self._running < self._beside and _usable_time() >= self._next


def _usable_time() -> float:
    """Seconds since some moment, without those for which this thread has waited for a processor.

    Where the kernel does not tell them, all count.
    """
    try:
        waited = int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, IndexError):
        waited = 0
    return monotonic() - waited / 1e9
