"""The socket server: greetings, lost connections, and that a worker which does not read delays no other."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from backends.native.engine.serving import socket as module
from backends.native.engine.serving.engine_thread import Inbox
from backends.native.engine.serving.socket import SocketServer
from backends.native.protocol.frames import FrameReader, encode_frame
from backends.native.protocol.messages import Failed, FromEngine, Loading, Message, Output, Ping, Pong, Ready, Step

TIMEOUT = 60.0
READY = Ready(128, 96, (2,), "float32", "cpu", "packed", 8)


class Worker:
    """A blocking client of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._reader: FrameReader[Message] = FrameReader(FromEngine)

    def send(self, message: Message) -> None:
        self.socket.sendall(encode_frame(message))

    def read(self, count: int) -> list[Message]:
        """The next messages; fewer if the connection ends."""
        messages: list[Message] = []
        while len(messages) < count and (data := self.socket.recv(1 << 16)):
            messages += self._reader.feed(data)
        return messages


Connect = Callable[[], Worker]


@pytest.fixture
def connect(path: Path) -> Iterator[Connect]:
    """Makes workers, and closes them at the end."""
    with ExitStack() as stack:

        def make() -> Worker:
            worker = Worker(path)
            stack.enter_context(closing(worker.socket))
            return worker

        yield make


@pytest.fixture
def inbox() -> Inbox:
    return SimpleQueue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@pytest.fixture
def server(path: Path, inbox: Inbox) -> Iterator[SocketServer]:
    made = SocketServer(path, inbox, unsent_limit=1 << 20)
    yield made
    made.close()


def test_only_the_owner_may_connect(path: Path, server: SocketServer) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_connection_is_greeted_with_the_latest_announcement(connect: Connect, server: SocketServer) -> None:
    server.announce(Loading(0.1))
    early = connect()
    assert early.read(1) == [Loading(0.1)]
    server.announce(Loading(0.9))
    assert early.read(1) == [Loading(0.9)]
    assert connect().read(1) == [Loading(0.9)]


def test_a_loading_engine_repeats_its_progress(
    path: Path, inbox: Inbox, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOADING_INTERVAL", 0.001)
    with closing(SocketServer(path, inbox)) as server:
        worker = connect()
        server.announce(Loading(0.1))
        assert worker.read(3)[:3] == [Loading(0.1)] * 3
        server.announce(READY)
        while worker.read(1)[-1] != READY:
            pass
        worker.send(Ping(1))
        connection, _ = inbox.get(timeout=TIMEOUT)
        server.send(connection, Pong(1))
        assert worker.read(1) == [Pong(1)], "the progress is not repeated any more"


def test_messages_go_both_ways_and_to_their_own_connection(
    connect: Connect, server: SocketServer, inbox: Inbox
) -> None:
    first, second = connect(), connect()
    for worker, token in ((first, 1), (second, 2)):
        worker.send(Ping(token))
        connection, message = inbox.get(timeout=TIMEOUT)
        assert message == Ping(token)
        server.send(connection, Pong(token))
    assert first.read(1) == [Pong(1)]
    assert second.read(1) == [Pong(2)]


def test_a_lost_worker_is_reported_once_and_sending_to_it_is_harmless(
    connect: Connect, server: SocketServer, inbox: Inbox
) -> None:
    worker = connect()
    worker.send(Ping(1))
    connection, _ = inbox.get(timeout=TIMEOUT)
    worker.socket.close()
    assert inbox.get(timeout=TIMEOUT) == (connection, None)
    server.send(connection, Pong(1))
    server.announce(Loading(1.0))
    with pytest.raises(Empty):
        inbox.get(timeout=0.05)


def test_bytes_that_are_no_frame_close_the_connection(connect: Connect, server: SocketServer, inbox: Inbox) -> None:
    worker = connect()
    worker.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert inbox.get(timeout=TIMEOUT)[1] is None
    assert worker.read(1) == []


def test_a_worker_that_does_not_read_is_dropped_and_the_others_are_served(
    connect: Connect, server: SocketServer, inbox: Inbox
) -> None:
    silent, reading = connect(), connect()
    for worker in (silent, reading):
        worker.send(Ping(0))
    ids = [inbox.get(timeout=TIMEOUT)[0] for _ in range(2)]
    big = Step((Output(0, error="x" * 100_000),))
    for _ in range(200):  # more than the socket's own buffers and ours can hold
        server.send(min(ids), big)
    assert inbox.get(timeout=TIMEOUT) == (min(ids), None)
    server.send(max(ids), Pong(7))
    assert reading.read(1) == [Pong(7)]


def test_a_message_larger_than_the_socket_buffer_arrives_whole(
    connect: Connect, server: SocketServer, inbox: Inbox
) -> None:
    worker = connect()
    worker.send(Ping(0))
    connection, _ = inbox.get(timeout=TIMEOUT)
    big = Step((Output(0, error="x" * 900_000),))
    server.send(connection, big)
    assert worker.read(1) == [big]


def test_close_sends_what_is_left_and_removes_the_socket(path: Path, connect: Connect, inbox: Inbox) -> None:
    server = SocketServer(path, inbox)
    worker = connect()
    worker.send(Ping(0))
    inbox.get(timeout=TIMEOUT)
    server.announce(Failed("why"))
    server.close()
    assert worker.read(2) == [Failed("why")]
    assert not path.exists()


def test_a_socket_left_behind_is_replaced_and_a_file_is_not(path: Path, inbox: Inbox) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    SocketServer(path, inbox).close()
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        SocketServer(path, inbox)
    assert path.read_text() == "precious"
