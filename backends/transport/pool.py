"""The connections to one upstream: at most so many, lent to one exchange at a time, first come first served.

Each new connection is made by a task that is never cancelled while the pool is open; whoever asked for it may have
left or got another meanwhile, then it serves the next. A connection counts from the moment it is asked for until its
socket is gone, and is counted out in one place, so no slot can be lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from backends.transport.connection import Connection
from backends.transport.limits import TransportLimits
from schemas.errors import BackendTimeout, BackendUnavailable, Fault, GatewayError, Overloaded

Connect = Callable[[Callable[[], Connection]], Awaitable[object]]
"""Opens a socket for the protocol that the argument makes. Raises `GatewayError` if it cannot."""


class Pool:
    """Connections.

    Args:
        connect: opens one.
        limits: how many, how long.
    """

    def __init__(self, connect: Connect, limits: TransportLimits) -> None:
        self._connect = connect
        self._limits = limits
        self._connections: set[Connection] = set()
        self._free: list[Connection] = []  # of them
        self._waiters: deque[asyncio.Future[Connection]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """Slots taken: connections, idle ones too, and those being made."""
        return len(self._connections) + len(self._connecting)

    @property
    def busy(self) -> int:
        """Connections lent or being made."""
        return self.open - len(self._free)

    async def acquire(self, deadline: float | None) -> Connection:
        """A connection, to be given back by its own `release` or `finish`.

        Raises:
            schemas.errors.GatewayError: there is none, or not by `deadline` (of the loop's clock).
        """
        if (connection := self._reuse()) is not None:
            return connection
        if self._closed:
            raise BackendUnavailable("The backend is being shut down.")
        if len(self._waiters) - len(self._connecting) >= self._limits.waiting and self.open >= self._limits.connections:
            raise Overloaded("The backend's queue is full.", retry_after=1.0)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Connection] = loop.create_future()
        self._waiters.append(waiter)
        self._grow()
        timer = None if deadline is None else loop.call_at(deadline, _late, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._freed(waiter.result())
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def drop_free(self) -> None:
        """Close the idle connections: the upstream has closed one, and likely all."""
        for connection in [*self._free]:
            connection.abort()

    async def aclose(self) -> None:
        """Close everything. Idempotent."""
        self._closed = True
        tasks = [*self._connecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connecting.clear()  # one that was cancelled before it began has not left by itself
        for connection in [*self._connections]:
            connection.abort()
        while (waiter := self._next()) is not None:
            waiter.set_exception(BackendUnavailable("The backend is being shut down."))

    def _reuse(self) -> Connection | None:
        """The connection used last is the likeliest to live."""
        oldest = asyncio.get_running_loop().time() - self._limits.keep_alive
        while self._free:
            connection = self._free.pop()
            if connection.open and connection.free_since >= oldest:
                return connection
            connection.abort()
        return None

    def _grow(self) -> None:
        """Make a connection for each who waits, as far as the limit allows."""
        while len(self._connecting) < len(self._waiters) and self.open < self._limits.connections and not self._closed:
            self._connecting.add(asyncio.ensure_future(self._open_one()))

    async def _open_one(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        made: Connection | None = None

        def make() -> Connection:
            nonlocal made
            made = Connection(self._limits, self._freed, self._lost)
            return made

        try:
            await self._connect(make)
        except GatewayError as error:
            made = None  # of a TLS handshake that failed there is one already
            self._refuse(error)
        finally:
            self._connecting.discard(task)
        if made is not None and made.open and not self._closed:
            self._connections.add(made)
            self._freed(made)
        elif made is not None:
            made.abort()
            self._refuse(BackendUnavailable("The backend closed the connection.", fault=Fault.CONNECT))
        self._grow()

    def _refuse(self, error: GatewayError) -> None:
        """One connection could not be made: that is for the first in line to hear."""
        if (waiter := self._next()) is not None:
            waiter.set_exception(error)

    def _freed(self, connection: Connection) -> None:
        """Lend it to the next in line, or keep it."""
        if not connection.open:
            connection.abort()
        elif (waiter := self._next()) is not None:
            waiter.set_result(connection)
        else:
            connection.free_since = asyncio.get_running_loop().time()
            self._free.append(connection)

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        self._grow()

    def _next(self) -> asyncio.Future[Connection] | None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None


def _late(waiter: asyncio.Future[Connection]) -> None:
    if not waiter.done():
        waiter.set_exception(BackendTimeout("The backend has no free connection.", fault=Fault.TIMEOUT))
