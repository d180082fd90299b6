"""Answers in the background, as all workers know them: which worker makes an answer, and its events so far.

An answer is an object whose data is its state and whose entries are its events. The state has a name of the worker that
makes the answer. A worker that lives renews a lease; what it was making when the lease expires is lost, and whoever
notices ends it. Each change depends on the state that it begins with, so that an answer is ended exactly once: by its
worker, by a client that cancels it, or by one that finds it lost. A worker that comes too late stores nothing.
"""

from __future__ import annotations

import secrets

from adapters.objects import RUN, Entry, Page, RunState, Span
from gateway.storage.objects.store import WORKER, KeyObjects, TooLarge

LEASE = 10.0
"""Seconds after its last sign until a worker counts as gone."""

_ENDED, _CUT = b"ended", b"cut"
_AT_ONCE = 1000
EVENT_END = b"\n\n"
"""What ends each event of a stream (SSE)."""


class Leases:
    """The leases of workers, and that of this one.

    Attributes:
        worker: this worker's name.

    Args:
        objects: of a key that no client can have.
    """

    def __init__(self, objects: KeyObjects) -> None:
        self._objects = objects
        self.worker = secrets.token_hex(8)

    async def renew(self) -> None:
        """Renew this worker's lease.

        Raises:
            OSError, sqlite3.Error: it cannot be written.
        """
        await self._objects.put(WORKER, self.worker, b"", seconds=LEASE)

    async def is_alive(self, worker: str) -> bool:
        """Whether a worker has a lease."""
        return await self._objects.get(WORKER, worker) is not None


class KeyRuns:
    """The answers in the background of one API key.

    Args:
        objects: the key's.
        leases: of the workers.
    """

    def __init__(self, objects: KeyObjects, leases: Leases) -> None:
        self._objects = objects
        self._leases = leases
        self._queued = b"queued " + leases.worker.encode()
        self._running = b"running " + leases.worker.encode()
        self._ending = b"ending " + leases.worker.encode()

    async def begin(self, id: str, events: bytes | None) -> None:
        """Queue an answer in this worker.

        Args:
            id: of the answer.
            events: its first ones; None: its events are not kept.

        Raises:
            TooLarge: the store keeps less of one answer.
        """
        await self._leases.renew()
        if not await self._objects.put(RUN, id, self._queued, () if events is None else (Entry("0", events),)):
            raise TooLarge

    async def start(self, id: str) -> bool:
        """Say that a queued answer is in progress; returns False if it is not this worker's any more."""
        return await self._objects.append(RUN, id, data=self._running, was=self._queued)

    async def append(self, id: str, number: int, events: bytes, *, last: bool = False) -> bool:
        """Append events, the first of which is the `number`-th; returns whether the answer is still this worker's.

        Raises:
            gateway.storage.objects.store.TooLarge: there are too many.
        """
        entries = (Entry(str(number), events),) if events else ()
        return await self._objects.append(
            RUN, id, entries, _ENDED if last else None, was=self._ending if last else self._running
        )

    async def cut(self, id: str) -> bool:
        """End an answer that this worker has claimed, and of which not all events are kept."""
        return await self._objects.append(RUN, id, data=_CUT, was=self._ending)

    async def claim(self, id: str) -> bool:
        """Have this worker alone end an answer of its own; returns False if it is not its own any more."""
        return await self._objects.append(RUN, id, data=self._ending, was=self._running)

    async def is_running(self, id: str) -> bool:
        """Whether this worker makes the answer, and nobody has taken it."""
        return await self._objects.get(RUN, id) in (self._queued, self._running)

    async def renew(self, id: str) -> None:
        """Have an answer that is being made expire later, however long it has no event."""
        await self._objects.append(RUN, id)

    async def find(self, id: str) -> RunState | None:
        """The state of an answer; None if nothing is known of it."""
        state = await self._objects.get(RUN, id)
        if state is None:
            return None
        first = await self._objects.entries(RUN, id, Span(1))
        streams = first is not None and bool(first.entries)
        if state in (_ENDED, _CUT):
            return RunState("ended" if state == _ENDED else "cut", streams)
        if await self._is_lost(state):
            return RunState("lost", streams)
        return RunState("queued" if state.startswith(b"queued ") else "running", streams)

    async def take(self, id: str) -> int | None:
        """Take an answer that has not ended away from its worker; returns the number of its events, None if it ended.

        The taker becomes its worker: if that ends, too, the next one takes it.
        """
        state = await self._objects.get(RUN, id)
        if (
            state is None
            or state in (_ENDED, _CUT)
            or (state.startswith(b"ending ") and not await self._is_lost(state))
        ):
            return None
        if not await self._objects.append(RUN, id, data=self._ending, was=state):
            return None
        await self._leases.renew()
        number, span = 0, Span(_AT_ONCE)
        while True:
            page = await self._objects.entries(RUN, id, span)
            number += sum(entry.data.count(EVENT_END) for entry in page.entries) if page is not None else 0
            if page is None or not page.more:
                return number
            span = Span(_AT_ONCE, page.entries[-1].id)

    async def close(self, id: str, number: int, event: bytes) -> None:
        """End an answer that `take` took with its last event, if its events are kept."""
        await self.append(id, number, event if number else b"", last=True)

    async def events(self, id: str, after: str) -> Page | None:
        """The entries behind the one of the id `after`; None if the answer is not kept any more."""
        return await self._objects.entries(RUN, id, Span(_AT_ONCE, after))

    async def _is_lost(self, state: bytes) -> bool:
        return not await self._leases.is_alive(state.partition(b" ")[2].decode())
