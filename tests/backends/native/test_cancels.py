"""Cancelled requests leave nothing behind, neither in the worker nor in the engine.

Two thousand requests by default; `CANCELS=10000 pytest tests/backends/native/test_cancels.py` for more.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import aclosing

import pytest

from backends.native.backend import NativeBackend
from schemas.ir import Generate, Sampling, Stopping, TextPrompt

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CANCELS = int(os.environ.get("CANCELS", "2000"))
AT_ONCE = 100
PROMPTS = ("Hello!", "Count to ten.", "Tell me a story. " * 30, "What is the capital of France?")


async def test_random_cancels_leave_nothing_behind() -> None:
    chance = random.Random(5)
    backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "heartbeat": 0.05, "max_sequences": 32})
    await backend.start()
    client, tasks = backend._client, len(asyncio.all_tasks())
    turn = asyncio.Semaphore(AT_ONCE)

    async def leave(number: int) -> None:
        asked = Generate(
            id=f"r{number}",
            model="demo",
            prompts=(TextPrompt(chance.choice(PROMPTS)),),
            sampling=Sampling(temperature=chance.choice((0.0, 1.0)), seed=number),
            stopping=Stopping(400, ignore_eos=True),
            n=chance.choice((1, 1, 1, 2)),
            stream=True,
        )
        async with turn, aclosing(backend.generate(asked)) as events:
            reading = asyncio.create_task(anext(events))  # some are cancelled while they wait, some after a few tokens
            for _ in range(chance.choice((0, 0, 1, 3))):
                await reading
                reading = asyncio.create_task(anext(events))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.01)
            reading.cancel()
            await asyncio.wait([reading])

    await asyncio.gather(*map(leave, range(CANCELS)))
    assert not client.busy
    await _until(
        lambda: (
            client.links[0].pong is not None and (client.links[0].pong.running, client.links[0].pong.waiting) == (0, 0)
        )
    )
    assert client.links[0].pong is not None
    assert client.links[0].pong.free_blocks == client.links[0].pong.total_blocks
    assert len(asyncio.all_tasks()) <= tasks
    await backend.aclose()


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not become true")
