"""How a worker ends, in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.config import ServerSection
from gateway.process import worker
from gateway.process.worker import _Server, uvicorn_config
from tests.gateway.serving import scripted

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def ending() -> AsyncIterator[tuple[_Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A worker that stops, and a client that had connected to it just before."""
    app, _ = scripted("echo")
    server = _Server(uvicorn_config(app, app.state.service.config.server), app.state.service, None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        while not server.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.should_exit = True
        while any(each.is_serving() for each in server.servers):  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield server, reader, writer
        writer.close()
        await serving


@pytest.mark.slow
async def test_a_client_that_has_just_connected_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_CLOSE_GRACE", 0.0)
    monkeypatch.setattr(worker, "_FIRST_REQUEST_GRACE", 60.0)
    async with ending() as (_, reader, writer):
        for _ in range(3):
            await asyncio.sleep(worker._POLL_INTERVAL)
        writer.write(GET)
        answer = await reader.read()  # to the connection's end
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.slow
async def test_a_client_that_never_sends_a_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_FIRST_REQUEST_GRACE", 3 * worker._POLL_INTERVAL)
    async with ending() as (_, reader, _writer):
        assert await reader.read() == b""


@pytest.mark.slow
async def test_connections_that_are_still_queued_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_CLOSE_GRACE", 0.0)
    app, _ = scripted("echo")
    server = _Server(uvicorn_config(app, app.state.service.config.server), app.state.service, None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listener])
        clients = [socket.create_connection(address) for _ in range(50)]
        for client in clients:
            client.sendall(GET)
        await server.shutdown([listener])
    answers = []
    for client in clients:
        with client:
            answers.append(client.recv(12))
    assert answers == [b"HTTP/1.1 200"] * 50


async def test_queued_connections_do_not_wait_for_the_handshakes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_CLOSE_GRACE", 0.0)
    app, _ = scripted("echo")
    server = _Server(uvicorn_config(app, app.state.service.config.server), app.state.service, None)
    taken: list[socket.socket] = []
    all_taken = asyncio.Event()

    async def connect(_: object, connection: socket.socket) -> None:
        taken.append(connection)
        if len(taken) == len(clients):
            all_taken.set()
        await all_taken.wait()  # each client is silent until all others are heard
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listener])
        clients = [socket.create_connection(address) for _ in range(3)]
        monkeypatch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", connect)
        async with asyncio.timeout(60):
            await server.shutdown([listener])
    for client in clients:
        client.close()


def test_idle_connections_live_75_seconds_unless_configured() -> None:
    app, _ = scripted("echo")
    assert uvicorn_config(app, ServerSection()).timeout_keep_alive == 75
    assert uvicorn_config(app, ServerSection(keep_alive=5)).timeout_keep_alive == 5
