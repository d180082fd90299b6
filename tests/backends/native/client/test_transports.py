"""Transports: frames over a Unix socket, and messages to a thread."""

from __future__ import annotations

import asyncio
import signal
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from backends.base import Health
from backends.native.client import transports
from backends.native.client.engine_client import EngineClient
from backends.native.client.transports import over_socket
from backends.native.protocol.frames import encode_frame
from backends.native.protocol.messages import FromEngine, Ping
from tests.backends.native.fake_engine import READY, FakeEngine, ask, until


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_requests_over_a_socket(run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path) -> None:
    run(requests_over_a_socket(str(tmp_path / "socket")))


async def test_an_engine_in_another_pid_namespace_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(transports.os, "kill", lambda *of: killed.append(of))
    engine, path = FakeEngine(), str(tmp_path / "socket")
    async with engine.serve(path):
        transport = await over_socket(path)(lambda _: None, lambda: None)
        await until(lambda: bool(engine.connections))
        for pid in (0, 1234567):  # 0: the kernel's answer for another PID namespace
            monkeypatch.setattr(transports, "_peer_pid", lambda _, pid=pid: pid)
            transport.kill()
        assert killed == [(1234567, signal.SIGKILL)]
        await transport.aclose()
        await until(lambda: not engine.connections)


async def requests_over_a_socket(path: str) -> None:
    engine = FakeEngine()
    client = EngineClient({"0": over_socket(path)}, heartbeat=0.01, hung_after=30.0, reconnect_timeout=30.0)
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0.01)
    assert client.health == Health("loading"), "it waits for an engine that does not listen yet"
    async with engine.serve(path):
        await starting
        request = ask(client, 300)
        ids: list[int] = []
        while request.unfinished or len(ids) < 300:
            ids += [id for output in await request.outputs() for id in output.ids]
        assert ids == list(range(11, 311))
        client.release(request)
        begun = ask(client, 10**6)
        ids = [id for output in await begun.outputs() for id in output.ids]
        engine.die()
        while len(ids) < 1000:
            ids += [id for output in await begun.outputs() for id in output.ids]
        assert ids == list(range(11, 11 + len(ids))), "it continued in the next engine"
        client.release(begun)
        await until(lambda: client.ready is not None)
        long = ask(client, 10**6)
        await long.outputs()
        client.release(long)
        await until(lambda: not engine.running)
        await client.aclose()
        await until(lambda: not engine.connections)


async def test_connecting_to_an_engine_that_does_not_listen_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await over_socket(str(tmp_path / "none"))(lambda _: None, lambda: None)


async def test_messages_arrive_only_after_connect_has_returned(tmp_path: Path) -> None:
    received: list[FromEngine] = []
    returned = False

    def receive(message: FromEngine) -> None:
        assert returned
        received.append(message)

    engine, path = FakeEngine(), str(tmp_path / "socket")
    async with engine.serve(path):
        transport = await over_socket(path)(receive, lambda: None)
        returned = True
        await until(lambda: received == [READY])
        await transport.aclose()


@pytest.mark.parametrize("sent", [struct.pack("<I", 2**31), struct.pack("<I", 3) + b"abc"], ids=["too long", "broken"])
async def test_a_frame_that_cannot_be_decoded_closes_the_connection(sent: bytes, tmp_path: Path) -> None:
    lost = asyncio.Event()
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(READY) + sent)
        await reader.read()
        closed.set()
        writer.close()

    path = str(tmp_path / "socket")
    async with await asyncio.start_unix_server(serve, path):
        transport = await over_socket(path)(lambda _: None, lost.set)
        await asyncio.wait_for(lost.wait(), 10)
        transport.send(Ping(1))  # dropped
        transport.kill()
        await asyncio.wait_for(closed.wait(), 10)
        await transport.aclose()
