"""Connections over TCP: the greeting between a socket server and a worker's transport, and who is not let in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from queue import Empty, SimpleQueue

import pytest

from backends.native.client.transports import SecretRefused, over_tcp
from backends.native.engine.serving import guests
from backends.native.engine.serving.engine_thread import Inbox
from backends.native.engine.serving.socket import SocketServer
from backends.native.protocol import greeting
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.frames import encode_frame
from backends.native.protocol.messages import FromEngine, Ping, Pong, Ready
from tests.backends.native.fake_engine import until

SECRET = b"a secret of some length"
READY = Ready(128, 96, (2,), "float32", "cpu", "packed", 8)
HOST = "127.0.0.2"


@pytest.fixture
def inbox() -> Inbox:
    return SimpleQueue()


@pytest.fixture
def server(inbox: Inbox) -> Iterator[SocketServer]:
    server = SocketServer(TcpAddress(HOST, 0), inbox, secret=SECRET)
    server.announce(READY)
    try:
        yield server
    finally:
        server.close()


def guest(server: SocketServer) -> socket.socket:
    made = socket.create_connection((HOST, server.port), timeout=30)
    assert len(made.recv(1000)) == greeting.CHALLENGE_BYTES
    return made


async def test_messages_cross_once_both_ends_know_the_secret(server: SocketServer, inbox: Inbox) -> None:
    received: list[FromEngine] = []
    lost = asyncio.Event()
    transport = await over_tcp(TcpAddress(HOST, server.port), lambda: SECRET)(received.append, lost.set)
    assert transport.remote
    transport.send(Ping(7))
    connection, message = await asyncio.to_thread(inbox.get, timeout=30)
    assert message == Ping(7)
    server.send(connection, Pong(7))
    await until(lambda: len(received) == 2)
    assert received == [READY, Pong(7)]
    transport.kill()  # nobody can, from here
    await transport.aclose()
    assert await asyncio.to_thread(inbox.get, timeout=30) == (connection, None)


async def test_a_worker_with_another_secret_is_refused_by_name_and_gets_no_frame(
    server: SocketServer, inbox: Inbox
) -> None:
    connect = over_tcp(TcpAddress(HOST, server.port), lambda: b"another secret, of some length")
    with pytest.raises(SecretRefused, match="another secret"):
        await connect(lambda _: None, lambda: None)
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_frames_before_the_greeting_are_not_read(server: SocketServer, inbox: Inbox) -> None:
    with closing(guest(server)) as made:
        made.sendall(encode_frame(Ping(1)) * 100)
        assert_closed(made)
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_a_guest_that_says_nothing_is_put_out(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "TIMEOUT", -1.0)
    with closing(guest(server)) as silent, closing(guest(server)):
        assert_closed(silent)


async def test_guests_are_put_out_by_an_engine_that_is_busy(
    server: SocketServer, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = await over_tcp(TcpAddress(HOST, server.port), lambda: SECRET)(lambda _: None, lambda: None)
    with closing(await asyncio.to_thread(guest, server)):
        looks: list[None] = []
        monkeypatch.setattr(server._guests, "expire", lambda: looks.append(None))
        for token in range(2):  # with the second one, the round of the first is over
            transport.send(Ping(token))
            await asyncio.to_thread(inbox.get, timeout=30)
        assert looks
    await transport.aclose()


def test_guests_are_bounded(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "_MAX_GUESTS", 2)
    with closing(guest(server)), closing(guest(server)), socket.create_connection((HOST, server.port), 30) as third:
        assert_closed(third)


async def test_an_impostor_that_does_not_know_the_secret_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting.new_challenge())
        answer = await reader.readexactly(greeting.ANSWER_BYTES)
        writer.write(answer[-greeting.PROOF_BYTES :])  # what it was sent
        await reader.read()
        await close(writer, closed)

    closed = asyncio.Event()
    async with await asyncio.start_server(serve, HOST, 0) as impostor:
        port = impostor.sockets[0].getsockname()[1]
        with pytest.raises(SecretRefused, match="does not know the secret"):
            await over_tcp(TcpAddress(HOST, port), lambda: SECRET)(lambda _: None, lambda: None)
        await closed.wait()


async def test_another_server_is_no_engine() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2 and a banner that is long enough for a challenge")
        await close(writer, closed)

    closed = asyncio.Event()
    async with await asyncio.start_server(serve, HOST, 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(SecretRefused, match="no engine"):
            await over_tcp(TcpAddress(HOST, port), lambda: SECRET)(lambda _: None, lambda: None)
        await closed.wait()


async def test_a_machine_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.native.client.transports._GREETING_TIMEOUT", 0.05)
    with closing(socket.create_server((HOST, 0))) as mute, pytest.raises(TimeoutError):
        await over_tcp(TcpAddress(HOST, mute.getsockname()[1]), lambda: SECRET)(lambda _: None, lambda: None)


async def test_tcp_needs_a_secret(inbox: Inbox) -> None:
    with pytest.raises(SecretRefused, match="NO_SUCH_SECRET is not set"):
        await over_tcp(TcpAddress(HOST, 1), lambda: greeting.read_secret("NO_SUCH_SECRET"))(lambda _: None, print)
    with pytest.raises(ValueError, match="secret"):
        SocketServer(TcpAddress(HOST, 0), inbox)


def assert_closed(made: socket.socket) -> None:
    """It ends, or is reset, if what it sent was not read."""
    with suppress(ConnectionResetError):
        assert made.recv(1000) == b""


async def close(writer: asyncio.StreamWriter, closed: asyncio.Event) -> None:
    """Close the server's end, and say so."""
    writer.close()
    with suppress(ConnectionError):  # the other end was closed before it had read everything
        await writer.wait_closed()
    closed.set()
