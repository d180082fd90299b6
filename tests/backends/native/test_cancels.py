"""Answers that nobody waits for the end of: nothing of them stays, in the worker or in the engine.

Two thousand by default; `CANCELS=10000 pytest tests/backends/native/test_cancels.py` for more.
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


async def test_random_cancels_leave_nothing() -> None:
    chance = random.Random(5)
    backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "heartbeat": 0.05, "max_sequences": 32})
    await backend.start()
    link, tasks = backend._link, len(asyncio.all_tasks())
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
            reading = asyncio.create_task(anext(events))  # some leave while they wait, some after a few tokens
            for _ in range(chance.choice((0, 0, 1, 3))):
                await reading
                reading = asyncio.create_task(anext(events))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.01)
            reading.cancel()
            await asyncio.wait([reading])

    await asyncio.gather(*map(leave, range(CANCELS)))
    assert not link.busy
    await _until(lambda: link.pong is not None and (link.pong.running, link.pong.waiting) == (0, 0))
    assert link.pong is not None
    assert link.pong.free_blocks == link.pong.total_blocks
    assert len(asyncio.all_tasks()) <= tasks
    await backend.aclose()


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")
