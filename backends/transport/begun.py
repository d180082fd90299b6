"""An exchange without a task: begun on an idle connection, with a callback for what comes.

Whatever is unusual about the answer is left to a task, which goes on with the exchange (`going_on`): it sends its
request as ever, and where that would be the very bytes that were sent already, it gets their connection instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from backends.transport.connection import Connection

if TYPE_CHECKING:
    from backends.transport.pool import Pool


class BegunExchange:
    """An idle connection that is lent to a request. `send`, and `listen` in the same turn, or `put_back` must follow.

    Args:
        pool: lends the connection.
        connection: lent.
        data: the request's bytes.
        limit: bytes of a whole body.

    Attributes:
        deadline: of the event loop's clock; to be met by whoever goes on with it, too.
    """

    __slots__ = ("_connection", "_data", "_limit", "_pool", "deadline")

    def __init__(self, pool: Pool, connection: Connection, data: bytes, limit: int) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self._data = data
        self._limit = limit
        self.deadline = 0.0

    @property
    def connection(self) -> Connection:
        """The connection, before a task goes on with it."""
        assert self._connection is not None
        return self._connection

    def put_back(self) -> None:
        """Send nothing."""
        self._pool.put_back(self.connection)

    def send(self, timeout: float) -> None:
        """Send the request. Its answer is to be there, or a stream's first event, after `timeout` s."""
        connection = self._connection
        assert connection is not None
        connection.send(self._data)
        if connection.opening:
            self._pool.open_begun(connection)
        self.deadline = connection.time() + timeout

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` as `Connection.listen` says."""
        connection = self._connection
        assert connection is not None
        connection.listen(listener, self.deadline)

    def has_type(self, types: Collection[bytes]) -> bool:
        """Whether the answer has status 200, one of these media types, and is not encoded."""
        connection = self._connection
        assert connection is not None
        if connection.status != 200:
            return False
        media_type = None
        for name, value in connection.headers:
            if name == b"content-type" and media_type is None:
                media_type = value
            elif name == b"content-encoding":
                return False
        return media_type in types or (media_type or b"").partition(b";")[0].strip().lower() in types

    def whole(self, types: Collection[bytes]) -> bytes | None:
        """The body of such an answer that has come as a whole; None of any other."""
        return self.connection.whole(self._limit) if self.has_type(types) else None

    def finish(self) -> None:
        """End a complete answer; its connection may be reused."""
        self.connection.finish()

    async def going_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a task that goes on with this exchange, and end what it has not taken."""
        _BEGUN.set(self)
        try:
            await work
        finally:
            self._drop()

    def stop(self) -> None:
        """Call nothing any more."""
        self.connection.listener = None

    def connection_for(self, data: bytes, pool: Pool) -> Connection | None:
        """The connection of a pool on which these bytes were sent, once."""
        if data != self._data or pool is not self._pool:
            return None
        connection, self._connection = self._connection, None
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.abort()


_BEGUN: ContextVar[BegunExchange | None] = ContextVar("begun", default=None)
begun = _BEGUN.get
"""The exchange with which the present task goes on; None: with none."""
