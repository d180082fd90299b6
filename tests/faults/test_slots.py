"""The pool has all its slots after thousands of requests that were cancelled at any moment."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress

import pytest

from backends.remote.backend import RemoteBackend
from tests.faults.recorded import TEXT, ask, frames, playing, record, request, text_of
from tests.faults.upstream import END, STREAM, Asked, Pause, Step, chunk

SLOTS = 10


@pytest.mark.parametrize("cancels", [500, pytest.param(5000, marks=(pytest.mark.slow, pytest.mark.no_cover))])
async def test_cancelled_requests_leak_no_slots(cancels: int) -> None:
    recording = frames(await record("openai", stream=True))
    dice = random.Random(3)

    def play(_: Asked) -> tuple[Step, ...]:
        slow = (Pause(dice.random() * 0.003), STREAM, *(chunk(frame) for frame in recording[:5]), Pause(0.002))
        return (*slow, *(chunk(frame) for frame in recording[5:]), END)

    async with playing("openai", play, limits={"connections": SLOTS, "waiting": 10_000}) as (backend, there):
        for _ in range(0, cancels, 50):
            await asyncio.gather(*(_cancel(backend, dice.randrange(12)) for _ in range(50)))
        pool = backend._connected.requests.pool  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while pool.busy:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert pool.open <= SLOTS
        answers = await asyncio.gather(*(ask(backend, request("openai", stream=True)) for _ in range(SLOTS)))
        assert [text_of(events) for events, _ in answers] == [TEXT] * SLOTS
        assert pool.open == there.open - 1 <= SLOTS  # health checks have a connection of their own
        assert there.gone > cancels // 10, "the upstream sees the disconnects"


async def _cancel(backend: RemoteBackend, moments: int) -> None:
    """Send a request and cancel it after that many half milliseconds (turns of the loop, where those take longer)."""

    async def use() -> None:
        async with aclosing(backend.generate(request("openai", stream=True))) as stream:
            async for _ in stream:
                pass

    task = asyncio.create_task(use())
    for _ in range(moments):
        await asyncio.sleep(0.0005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.slow
async def test_a_closed_generator_closes_the_connection() -> None:
    recording = frames(await record("tgi", stream=True))

    def play(_: Asked) -> tuple[Step, ...]:
        return (STREAM, *(step for frame in recording for step in (chunk(frame), Pause(0.01))))

    async with playing("tgi", play) as (backend, there):
        stream = backend.generate(request("tgi", stream=True))
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):
            while not there.gone:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert backend._connected.requests.pool.open == 0  # type: ignore[union-attr]
