"""Stored responses that all gateways with the same state server find.

Codecs look responses up while they decode, which is synchronous and without I/O. So a codec that asks for one is
interrupted (`Pending`); the response is fetched, and the codec is called again, which then finds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from adapters.base import Record
from gateway.storage.response_store import LARGEST_SHARE, name_of
from gateway.storage.shared.state_server import ServerAway, StateServer
from schemas.errors import BackendUnavailable

log = structlog.get_logger()

T = TypeVar("T")


class Pending(Exception):
    """A codec needs what has to be fetched: `fetch` does so, and then the codec is to be called again."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        self.fetch = fetch


async def fetching(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call that may be `Pending` any number of times.

    Raises:
        schemas.errors.BackendUnavailable: the state server does not answer.
    """
    while True:
        try:
            return await call()
        except Pending as pending:
            fetch = pending.fetch
        await fetch()


class SharedResponses:
    """The responses of all gateways.

    Args:
        server: the state server.
        limit: bytes of which one response may take a part, as in `ResponseStore`.
        age: seconds for which a response is kept. A server that is full drops the least recently used ones before.
    """

    def __init__(self, server: StateServer, limit: int, age: float) -> None:
        self._server, self._largest, self._age = server, limit // LARGEST_SHARE, max(1, int(age))

    def of(self, key: str) -> SharedKeyResponses:
        """The responses of an API key, for one request; "" stands for requests without one."""
        return SharedKeyResponses(self, key)

    async def get(self, name: bytes) -> bytes | None:
        """A response; None if there is none.

        Raises:
            schemas.errors.BackendUnavailable: the state server does not answer.
        """
        found: bytes | None = await self._asked(lambda redis: redis.get(self._key(name)))
        return found

    async def delete(self, name: bytes) -> bool:
        """Delete a response; return whether there was one.

        Raises:
            schemas.errors.BackendUnavailable: the state server does not answer.
        """
        return bool(await self._asked(lambda redis: redis.delete(self._key(name))))

    def fits(self, data: bytes) -> bool:
        """Whether a response is small enough to be stored."""
        return len(data) <= self._largest

    async def put(self, name: bytes, data: bytes) -> bool:
        """Store a response and return True; return False if it is too large.

        Raises:
            ServerAway: the state server does not answer.
        """
        if not self.fits(data):
            return False
        await self._server.run(lambda redis: redis.set(self._key(name), data, ex=self._age))
        return True

    def close(self) -> None:
        """Nothing: the connections are closed elsewhere."""

    async def _asked(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            return await self._server.run(call)
        except ServerAway:
            raise BackendUnavailable("Stored responses cannot be reached now.", retry_after=1.0) from None

    def _key(self, name: bytes) -> str:
        return self._server.key("responses", name.hex())


class SharedKeyResponses:
    """The responses of one API key, as one request sees them; `adapters.base.Records`."""

    def __init__(self, store: SharedResponses, key: str) -> None:
        self._store = store
        self._key = key
        self._found: dict[str, bytes | None] = {}
        self._deleted: dict[str, bool] = {}

    def get(self, id: str) -> bytes | None:
        """The response with this id; None if there is none any more.

        Raises:
            Pending: it has not been fetched yet.
        """
        if id not in self._found:
            raise Pending(partial(self._fetch, id))
        return self._found[id]

    def delete(self, id: str) -> bool:
        """Whether there was a response with this id, which is deleted.

        Raises:
            Pending: it is still to be deleted.
        """
        if id not in self._deleted:
            raise Pending(partial(self._drop, id))
        return self._deleted[id]

    def fits(self, data: bytes) -> bool:
        """Whether a response is small enough to be stored."""
        return self._store.fits(data)

    async def keep(self, record: Record) -> bool:
        """Store a response; returns whether it was stored.

        A response that is too large or cannot be written is logged: the answer itself is still sent.
        """
        assert record.data is not None
        try:
            if await self._store.put(name_of(self._key, record.id), record.data):
                return True
            log.warning("response.too_large", id=record.id, bytes=len(record.data))
        except ServerAway as error:
            log.error("response.not_stored", id=record.id, error=str(error))
        return False

    async def load(self, id: str) -> bytes | None:
        """The response with this id as it is stored now; None if there is none any more.

        Raises:
            schemas.errors.BackendUnavailable: the state server does not answer.
        """
        return await self._store.get(name_of(self._key, id))

    async def drop(self, id: str) -> bool:
        """Delete the response with this id; return whether there was one.

        Raises:
            schemas.errors.BackendUnavailable: the state server does not answer.
        """
        return await self._store.delete(name_of(self._key, id))

    async def _fetch(self, id: str) -> None:
        self._found[id] = await self._store.get(name_of(self._key, id))

    async def _drop(self, id: str) -> None:
        self._deleted[id] = await self._store.delete(name_of(self._key, id))
