"""How a worker ends, in this process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.config import ServerSection
from gateway.process import worker
from gateway.process.worker import _Server, uvicorn_config
from tests.gateway.serving import MESSAGES, scripted

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
        server._stop()
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


WORDS = {
    "/v1/chat/completions": (503, lambda body: body["error"]["code"] == "server_shutdown"),
    "/v1/messages": (529, lambda body: body["error"]["type"] == "overloaded_error"),
    "/generate": (503, lambda body: body["error_type"] == "overloaded"),
    "/v2/models/hang/generate": (503, lambda body: "shutting down" in body["error"]),
}
"""Routes, and the status and body with which a shutdown cuts a request of each."""


@pytest.mark.slow
@pytest.mark.parametrize("path", WORDS)
async def test_a_client_whose_answer_has_not_begun_learns_of_the_shutdown(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = scripted("hang", server=ServerSection(drain_timeout=0.0))
    service = app.state.service
    server = _Server(uvicorn_config(app, service.config.server), service, None)
    chat = {"model": "hang", "messages": MESSAGES, "max_tokens": 5}
    body = json.dumps(chat if path.startswith("/v1") else {"inputs": "Hi", "text_input": "Hi"}).encode()
    fields = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"POST %b HTTP/1.1\r\n%b\r\n%b" % (path.encode(), fields, body))
        while not service.running:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with capture_logs() as entries:
            server._stop()
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await serving
    status, tells = WORDS[path]
    assert (int(head.split()[1]), head.lower().count(b"\r\nconnection: close")) == (status, 1), head
    assert tells(json.loads(answer)), answer
    (line,) = (each for each in entries if each["event"] == "request.finished")
    assert (line["status"], line["outcome"]) == (status, "cancelled")
    assert not [record.message for record in caplog.records if record.exc_info]


@pytest.mark.slow
async def test_a_stream_that_the_shutdown_cuts_ends_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = scripted("hang-after-2", server=ServerSection(drain_timeout=0.0))
    server = _Server(uvicorn_config(app, app.state.service.config.server), app.state.service, None)
    body = json.dumps({"model": "hang-after-2", "messages": MESSAGES, "stream": True}).encode()
    fields = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n%b\r\n%b" % (fields, body))
        await reader.readuntil(b"data: ")
        server._stop()
        rest = await reader.read()
        writer.close()
        await serving
    assert b'"code":"server_shutdown"' in rest
    assert not [record.message for record in caplog.records if record.exc_info]
