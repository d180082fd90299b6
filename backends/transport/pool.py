"""The connections to one upstream: bounded in number, each lent to one exchange at a time.

Strategy:
- Idle connections are reused last in, first out. The one used last is the least likely to have been closed by the
  upstream, and those that a burst needed grow old and are closed. A connection idle for longer than `keep_alive` is not
  reused: the upstream may close it while the request is on its settings.
- Requests wait in a bounded line, in which keys take turns, each until its own deadline.
- A task of the pool opens each new connection, and is not cancelled with the request that caused it. Otherwise its
  handshake would be wasted and the next request would pay for another. The connection goes to whoever waits first.
- While nobody waits and a slot is free, a connection is lent before it is open (`begin`), and sends the request then.
- A slot is taken when a connection is begun and given back in one place, when its socket is closed (`_on_closed`) or
  could not be opened. No exchange holds a slot by itself, so a cancelled one cannot leak it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from backends.transport.connection import Connection
from backends.transport.limits import TransportLimits
from backends.transport.waiting_line import WaitingLine
from schemas.errors import BackendUnavailable, Fault, GatewayError, Overloaded

Connect = Callable[[Callable[[], Connection]], Awaitable[object]]
"""Opens a socket for the protocol that the argument makes. Raises `GatewayError` if it cannot."""


class Pool:
    """The connections to one upstream.

    Args:
        connect: opens one.
        limits: how many, and for how long they may idle.
    """

    def __init__(self, connect: Connect, limits: TransportLimits) -> None:
        self._connect = connect
        self._limits = limits
        self._connections: set[Connection] = set()  # open ones, lent or idle, and those lent before they are open
        self._idle: list[Connection] = []  # a subset of them, in the order of `idle_since`
        self._waiting = WaitingLine[Connection](limits, self._on_idle)
        # The sets keep the tasks alive: the event loop holds weak references only. `_opening`: of lent connections.
        self._connecting: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """How many slots are taken: by connections, idle ones included, and by those being opened."""
        return len(self._connections) + len(self._connecting)

    @property
    def busy(self) -> int:
        """How many connections are lent or being opened."""
        return self.open - len(self._idle)

    async def acquire(self, deadline: float | None, flow: str = "", tokens: int = 1) -> Connection:
        """Borrow a connection. Its `release`, `finish` or `abort` gives it back.

        Args:
            deadline: of the event loop's clock.
            flow: whose request it is for; those of different flows take turns.
            tokens: about how many the request has, 1 or more.

        Raises:
            schemas.errors.GatewayError: there is none, or not by `deadline`.
        """
        # This overtakes nobody: `_on_idle` prefers waiting requests, so idle connections exist only while none waits.
        if (connection := self.take_idle()) is not None:
            return connection
        if self._closed:
            raise BackendUnavailable("The backend is being shut down.")
        # Requests for which a connection is being opened do not count as queued. While a slot is free nothing is
        # refused, whatever the length of the queue.
        if len(self._waiting) - len(self._connecting) >= self._limits.waiting and self.open >= self._limits.connections:
            raise Overloaded("The backend's queue is full.", retry_after=1.0)
        place = self._waiting.join(flow, tokens)
        self._open_more()
        return await self._waiting.wait(place, deadline)

    def close_idle(self) -> None:
        """Close the idle connections. Called when the upstream has closed one, and so likely all (a restart)."""
        # A copy, because `_on_closed` edits the list. The connections stay listed until then, and `take_idle` skips
        # them.
        for connection in [*self._idle]:
            connection.abort()

    async def aclose(self) -> None:
        """Close all connections and fail all waiting requests. Idempotent."""
        self._closed = True
        tasks = [*self._connecting, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connecting.clear()  # a task that was cancelled before its first step has not removed itself
        # Lent connections as well: their exchanges fail with a truncated or a reset answer.
        for connection in [*self._connections]:
            connection.abort()
        while self._waiting.fail(BackendUnavailable("The backend is being shut down.")):
            pass

    def take_idle(self) -> Connection | None:
        """The connection used last, if it may still be reused. Those that may not are closed on the settings."""
        while self._idle:
            connection = self._idle.pop()  # from the end: the one used last
            if connection.open and connection.time() - connection.idle_since <= self._limits.keep_alive:
                return connection
            connection.abort()
        return None

    def begin(self) -> Connection | None:
        """Borrow an idle connection, or one that `open_begun` opens; None: others wait, or there is no slot."""
        if (connection := self.take_idle()) is not None:
            return connection
        if self._closed or len(self._waiting) or self.open >= self._limits.connections:
            return None
        connection = Connection(self._limits, self._on_idle, self._on_closed, opening=True)
        self._connections.add(connection)
        return connection

    def open_begun(self, connection: Connection) -> None:
        """Open a connection that was lent before: it sends its request then."""
        self._opening.add(task := asyncio.ensure_future(self._open(connection)))
        task.add_done_callback(partial(self._opened, connection))

    def put_back(self, connection: Connection) -> None:
        """Take back a connection on which nothing was sent."""
        if connection.opening:  # nobody has begun to open it
            self._on_closed(connection)
        else:
            self._on_idle(connection)

    async def _open(self, connection: Connection) -> None:
        """Open a connection that is lent already."""
        try:
            await self._connect(lambda: connection)
        except GatewayError as error:
            connection.fail_to_open(error)

    def _opened(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if connection.opening:  # the pool was closed, maybe before the task's first step
            connection.fail_to_open(BackendUnavailable("The backend is being shut down."))

    def _open_more(self) -> None:
        """Begin a connection for each waiting request, as far as the limit allows."""
        # Each connection being opened is meant for one waiting request. One that is released meanwhile may serve the
        # request instead; the new connection then becomes idle.
        while len(self._connecting) < len(self._waiting) and self.open < self._limits.connections and not self._closed:
            self._connecting.add(asyncio.ensure_future(self._open_connection()))

    async def _open_connection(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        # asyncio makes the protocol itself, inside `create_connection`: the closure is how the task learns which one.
        opened: Connection | None = None

        def make() -> Connection:
            nonlocal opened
            opened = Connection(self._limits, self._on_idle, self._on_closed)
            return opened

        try:
            await self._connect(make)
        except GatewayError as error:
            opened = None  # asyncio makes the protocol before a TLS handshake, which may then fail
            # One failure fails one request: the others have connections of their own under way, or wait for a slot.
            self._waiting.fail(error)
        finally:
            # No await between here and `_connections.add`: no other task can see the slot as free.
            self._connecting.discard(task)
        # The upstream may have closed, or the pool may have been closed, while the connection was being opened.
        if opened is not None and opened.open and not self._closed:
            self._connections.add(opened)
            self._on_idle(opened)
        elif opened is not None:
            opened.abort()
            self._waiting.fail(BackendUnavailable("The backend closed the connection.", fault=Fault.CONNECT))
        # A failed attempt has freed its slot, and requests may still wait for one.
        self._open_more()

    def _on_idle(self, connection: Connection) -> None:
        """Lend a connection to the first in the queue, or keep it."""
        # The upstream may close the socket between the end of a response and its release.
        if not connection.open:
            connection.abort()
        elif not self._waiting.serve(connection):
            connection.idle_since = connection.time()
            self._idle.append(connection)

    def _on_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._open_more()  # the slot is free for a waiting request
