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
from tests.faults.upstream import Hang, upstream


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
