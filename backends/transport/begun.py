"""An exchange without a task: begun on an idle connection, with a callback for its end.

Whatever is unusual about the end is left to a task, which goes on with the exchange (`going_on`): it sends its request
as ever, and where that would be the very bytes that were sent already, it gets their connection instead.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from backends.transport.connection import Connection

if TYPE_CHECKING:
    from backends.transport.pool import Pool

_JSON = b"application/json"


class BegunExchange:
    """An idle connection that is lent to a request. `send` or `put_back` must follow.

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

    def put_back(self) -> None:
        """Send nothing."""
        assert self._connection is not None
        self._connection.put_back()

    def send(self, ended: Callable[[], None], timeout: float) -> None:
        """Send the request. `ended` is called as `Connection.expect_end` says, at the latest after `timeout` s."""
        connection = self._connection
        assert connection is not None
        self.deadline = connection.time() + timeout
        connection.send(self._data)
        connection.expect_end(ended, self.deadline)

    def take_whole(self) -> bytes | None:
        """The body of an answer of JSON with status 200 that has come as a whole; None of any other."""
        connection = self._connection
        assert connection is not None
        if connection.status != 200:
            return None
        media_type = None
        for name, value in connection.headers:
            if name == b"content-type" and media_type is None:
                media_type = value
            elif name == b"content-encoding":
                return None
        if media_type != _JSON and (media_type or b"").partition(b";")[0].strip().lower() != _JSON:
            return None
        return connection.take_whole(self._limit)

    def give_back(self, body: bytes) -> None:
        """Undo `take_whole`: whoever goes on is to read the body."""
        assert self._connection is not None
        self._connection.give_back(body)

    def finish(self) -> None:
        """End a complete answer; its connection may be reused."""
        assert self._connection is not None
        self._connection.release()

    async def going_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a task that goes on with this exchange, and end what it has not taken."""
        _BEGUN.set(self)
        try:
            await work
        finally:
            self._drop()

    def stop(self) -> None:
        """Call nothing any more."""
        assert self._connection is not None
        self._connection.ended = None

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
