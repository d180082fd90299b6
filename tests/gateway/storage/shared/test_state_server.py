"""The state server's client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

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
