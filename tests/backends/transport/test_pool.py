"""The pool's slots: a failure to connect fails one request, and no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from backends.transport.connection import Connection
from backends.transport.limits import TransportLimits
from backends.transport.pool import Pool
from schemas.errors import BackendTimeout, BackendUnavailable, Fault, Overloaded
from tests.backends.transport.test_client import until
from tests.faults.upstream import Hang, response, upstream


async def test_a_failed_handshake_fails_one_request() -> None:
    """asyncio makes the protocol before the TLS handshake fails; it does not count as a connection."""
    tries = 0

    async with upstream(lambda _: (Hang(),)) as there:

        async def connect(make: Callable[[], Connection]) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                make()
                raise BackendUnavailable("no handshake", fault=Fault.CONNECT)
            await asyncio.get_running_loop().create_connection(make, "127.0.0.1", there.port)

        pool = Pool(connect, TransportLimits(connections=1))
        first, second = await asyncio.gather(pool.acquire(None), pool.acquire(None), return_exceptions=True)
        assert isinstance(first, BackendUnavailable)
        assert isinstance(second, Connection)
        assert pool.open == pool.busy == 1
        second.abort()
        await until(lambda: pool.open == 0)


async def test_waiting_requests_fail_when_the_pool_closes() -> None:
    async def connect(make: Callable[[], Connection]) -> None:
        await asyncio.Event().wait()

    pool = Pool(connect, TransportLimits())
    waiting = asyncio.create_task(pool.acquire(None))
    await asyncio.sleep(0)
    await pool.aclose()
    with pytest.raises(BackendUnavailable):
        await waiting
    with pytest.raises(BackendUnavailable):
        await pool.acquire(None)
    assert pool.open == 0


@pytest.mark.parametrize(
    ("queue_timeout", "deadline", "error"), [(0.05, 60.0, Overloaded), (60.0, 0.05, BackendTimeout)]
)
async def test_a_request_waits_no_longer_than_the_queue_allows(
    queue_timeout: float, deadline: float, error: type[Exception]
) -> None:
    async def connect(make: Callable[[], Connection]) -> None:
        await asyncio.Event().wait()

    pool = Pool(connect, TransportLimits(queue_timeout=queue_timeout))
    with pytest.raises(error):
        await pool.acquire(asyncio.get_running_loop().time() + deadline)
    await pool.aclose()


REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Opening:
    """A pool of one connection that is opened when `release` is set, and its only connection, which is lent before."""

    def __init__(self, port: int | None) -> None:
        self.release = asyncio.Event()
        self.heard = 0
        self._port = port
        self.pool = Pool(self._connect, TransportLimits(connections=1))
        connection = self.pool.begin()
        assert connection is not None
        self.connection = connection
        connection.send(REQUEST)
        self.pool.open_begun(connection)
        connection.listen(self._hear, None)

    async def _connect(self, make: Callable[[], Connection]) -> None:
        await self.release.wait()
        if self._port is None:
            raise BackendUnavailable("refused", fault=Fault.CONNECT)
        await asyncio.get_running_loop().create_connection(make, "127.0.0.1", self._port)

    def _hear(self) -> None:
        self.heard += 1


async def test_a_connection_sends_its_first_request_once_it_is_open() -> None:
    async with upstream(lambda _: (response(b"ok"),)) as there:
        opening = Opening(there.port)
        pool, connection = opening.pool, opening.connection
        assert pool.open == pool.busy == 1
        assert pool.begin() is None
        waiting = asyncio.create_task(pool.acquire(None))
        await asyncio.sleep(0)
        assert not connection.settled
        opening.release.set()
        await until(lambda: connection.settled)
        assert connection.whole(100) == b"ok"
        connection.finish()
        assert await waiting is connection
        connection.abort()
        await until(lambda: pool.open == 0)
        assert there.connections == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_connection_that_is_not_opened_fails_its_request(leaves: bool) -> None:
    opening = Opening(None)
    if leaves:
        opening.connection.release()
    opening.release.set()
    await until(lambda: opening.pool.open == 0)
    assert opening.heard == (0 if leaves else 1)
    with pytest.raises(BackendUnavailable, match="refused"):
        opening.connection.has_ended()


async def test_a_connection_on_which_nothing_is_sent_is_not_opened() -> None:
    """A request that a limit refuses costs the server nothing."""
    opened: list[Callable[[], Connection]] = []

    async def connect(make: Callable[[], Connection]) -> None:
        opened.append(make)

    pool = Pool(connect, TransportLimits(connections=1))
    connection = pool.begin()
    assert connection is not None
    assert pool.open == 1
    pool.put_back(connection)
    await asyncio.sleep(0.01)
    assert (pool.open, opened) == (0, [])


async def test_nothing_is_sent_for_a_request_that_left_before_the_connection_was_open() -> None:
    async with upstream(lambda _: (Hang(),)) as there:
        opening = Opening(there.port)
        opening.connection.release()
        opening.release.set()
        await until(lambda: opening.pool.open == 0)
        assert not there.asked
        assert (opening.connection.open, opening.heard) == (False, 0)


@pytest.mark.parametrize("turns", [0, 1])  # of the event loop, in the first of which the task begins
async def test_a_connection_that_is_being_opened_fails_when_the_pool_closes(turns: int) -> None:
    opening = Opening(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    await opening.pool.aclose()
    assert (opening.pool.open, opening.heard) == (0, 1)
    with pytest.raises(BackendUnavailable, match="shut down"):
        opening.connection.has_ended()
    assert opening.pool.begin() is None
