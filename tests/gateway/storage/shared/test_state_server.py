"""The state server's client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from gateway.storage.shared import state_server as module
from tests.gateway.state_server import Process

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_a_call_may_be_cancelled_at_any_moment(state_process: Process) -> None:
    server = state_process.client()

    async def call(redis: Any) -> Any:
        return await redis.set(server.key("name"), b"value")

    async with aclosing(server):
        await server.run(call)
        turns = 0
        while True:
            task = asyncio.create_task(server.run(call))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            turns += 1
        assert turns > 3
        assert not server.is_away


async def test_connections_that_cannot_be_closed_do_not_keep_it_away(
    state_process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_INTERVAL", 0.01)
    server = state_process.client()
    pool, closings = server._redis.connection_pool, 0
    disconnect = pool.disconnect

    async def late(*, inuse_connections: bool = True) -> None:
        nonlocal closings
        closings += 1
        if closings == 1:
            raise TimeoutError("the other side does not end TLS")
        await disconnect(inuse_connections=inuse_connections)

    async with aclosing(server):
        monkeypatch.setattr(pool, "disconnect", late)
        server._lose("a test")
        async with asyncio.timeout(60):
            while server.is_away:  # noqa: ASYNC110 - as its users do
                await asyncio.sleep(0.01)
        assert await server.run(lambda redis: redis.ping())
