"""Streams of gRPC in flight at the end of a gateway, or of its configuration: each is whole."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from tests.gateway.grpc.calls import ask, channel, is_last, method, said
from tests.gateway.processes import Gateway, serving, until

pytestmark = pytest.mark.slow

STREAMS = {signal.SIGTERM: 200, signal.SIGHUP: 40}
TEXT = " ".join(map(str, range(40)))
CONFIG = """
[server]
port = 0
workers = 2
[server.grpc]
port = 0
[backends.s]
kind = "scripted"
[backends.s.scripts]
paced = { echo = true, interval = 0.05 }
[endpoints.paced]
served_entities = [{ name = "paced-1", backend = "s", model = "paced" }]
"""
"""A token each 0.05 s: the signal comes in the middle of each answer."""


async def stream(port: int, begun: list[None]) -> tuple[str, bool]:
    """The text of a stream, and whether it has its last response."""
    request = ask("paced", TEXT)
    request.parameters["max_tokens"].int64_param = 1000
    text, ended = "", False
    async with channel(port) as client:
        async for response in method(client, "ModelStreamInfer")(iter([request])):
            begun += [None] if not text else []
            text += said(response.infer_response)
            ended = is_last(response.infer_response)
    return text, ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["end", "reload"])
def test_every_stream_is_whole(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIG)
    with serving("--config", str(file), log=tmp_path / "log") as gateway:
        found = re.search(r"^gRPC on port (\d+)$", gateway.log.read_text(), re.MULTILINE)
        assert found is not None
        workers = gateway.workers()
        answers = asyncio.run(drive(gateway, int(found[1]), number))
        assert answers == [(TEXT, True)] * STREAMS[number]
        if number == signal.SIGHUP:
            until(lambda: not set(workers) & set(gateway.workers()), gateway.log)
            assert asyncio.run(stream(int(found[1]), [])) == (TEXT, True)


async def drive(gateway: Gateway, port: int, number: signal.Signals) -> list[tuple[str, bool]]:
    begun: list[None] = []
    streams = [asyncio.create_task(stream(port, begun)) for _ in range(STREAMS[number])]
    while len(begun) < STREAMS[number]:  # noqa: ASYNC110 - the streams of real processes
        await asyncio.sleep(0.02)
    gateway.process.send_signal(number)
    return await asyncio.gather(*streams)
