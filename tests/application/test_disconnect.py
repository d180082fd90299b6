"""A client's disconnect cancels its request at once, at every stage, and leaks nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from time import monotonic

import pytest

from gateway.app import create_app
from tests.gateway.serving import config, listening, scripted

MODELS = ("hang", "hang-after-2", "slow", "echo")
LIMIT = 60.0  # seconds; nothing takes so long, however busy the machine


def request(model: str, stream: bool) -> bytes:
    asked = {"text_input": "one two three four five six seven eight nine ten", "max_tokens": 200}
    body = json.dumps(asked).encode()
    path = f"/v2/models/{model}/generate{'_stream' if stream else ''}"
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    began = monotonic()
    while not condition():
        assert monotonic() - began < LIMIT, "it never came to hold"
        await asyncio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["hang", "hang-after-2"])
async def test_a_disconnect_cancels_the_request(model: str, stream: bool) -> None:
    app, backend = scripted(*MODELS)
    async with listening(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(model, stream))
        await until(lambda: backend.active == 1)
        await asyncio.sleep(0.05)
        writer.close()
        await until(lambda: backend.active == 0)
        assert backend.cancelled == 1
        await until(lambda: app.state.service.running == 0)


async def leave_at_random(port: int, models: tuple[str, ...], visits: int, longest: float) -> None:
    """Send requests and disconnect: within the request, before the answer, and within the answer."""
    chance = random.Random(7)

    async def visit() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = request(chance.choice(models), chance.random() < 0.5)
        writer.write(data[: chance.randint(1, len(data))] if chance.random() < 0.2 else data)
        await asyncio.sleep(chance.random() * longest)
        if chance.random() < 0.3:
            with_timeout = asyncio.wait_for(reader.read(100), 0.01)
            await asyncio.gather(with_timeout, return_exceptions=True)
        (writer.transport.abort if chance.random() < 0.5 else writer.close)()

    for _ in range(visits // 50):
        await asyncio.gather(*(visit() for _ in range(50)))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
async def test_a_thousand_random_disconnects_leak_nothing() -> None:
    app, backend = scripted(*MODELS)
    async with listening(app) as port:
        tasks, files = len(asyncio.all_tasks()), open_files()
        await leave_at_random(port, MODELS, 1000, 0.03)
        service = app.state.service
        await until(lambda: backend.active == 0 and service.running == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)


@pytest.mark.torch
async def test_a_thousand_random_disconnects_leave_no_sequence_in_the_engine() -> None:
    from backends.native.backend import NativeBackend

    backend = NativeBackend("s", {"engine": "inprocess", "heartbeat": 0.05})
    async with listening(create_app(config("demo"), {"s": backend})) as port:
        client = backend._client
        await until(lambda: client.links[0].pong is not None)
        idle, tasks, files = client.links[0].pong, len(asyncio.all_tasks()), open_files()
        await leave_at_random(port, ("demo",), 1000, 0.1)
        await until(lambda: not client.busy)
        await until(lambda: (client.links[0].pong.running, client.links[0].pong.waiting) == (0, 0))
        assert client.links[0].pong.free_blocks == idle.free_blocks
        await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)
