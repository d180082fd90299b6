"""The socket server of the engine process: frames between the workers' connections and the engine's inbox.

Strategy: one background thread runs a `selectors` loop over the listening socket, all connections and a wake-up socket
pair (the self-pipe trick). The engine's thread must never wait for a worker:

- *Write at once*: `send` writes in the calling thread as much as the kernel takes, so that an output which `send` has
  returned from usually survives the end of the process; the loop writes the rest when the socket is writable.
- *Back-pressure by disconnecting*: bytes that a worker does not read are buffered up to `unsent_limit`; beyond it the
  worker is taken for dead, and its connection is closed and reported as lost.
- *Greeting*: a new connection is sent the latest announcement first (`Loading`, `Ready` or `Failed`). A connection over
  TCP is a guest until it has proved to know the secret (`guests`): a Unix socket has a file mode, which TCP has not.
"""

from __future__ import annotations

import selectors
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import structlog

from backends.native.engine.serving.engine_thread import Inbox
from backends.native.engine.serving.guests import TIMEOUT, Guests
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
from backends.native.protocol.messages import FromEngine, Loading, ToEngine

log = structlog.get_logger()

_CHUNK = 256 * 1024
_LOADING_INTERVAL = 5.0  # seconds after which a loading engine sends its progress again


@dataclass(slots=True, eq=False)
class _Connection:
    """The connection of a worker. The server's lock guards `unsent` and `closing`; the rest is used by its thread only.

    Attributes:
        id: of the connection, unique in this server.
        socket: non-blocking.
        reader: decodes the frames that arrive.
        unsent: encoded frames that the socket has not taken yet.
        closing: whether the thread must close the connection, because `unsent` became too large.
    """

    id: int
    socket: socket.socket
    reader: FrameReader[ToEngine] = field(default_factory=lambda: FrameReader(ToEngine))
    unsent: bytearray = field(default_factory=bytearray)
    closing: bool = False


class SocketServer:
    """Listens on a Unix socket or a TCP port, and carries messages between its connections and an inbox.

    Args:
        address: path of a Unix socket, made with mode 0600, where a socket left by an earlier engine is replaced; or a
            TCP address.
        inbox: receives (connection, message), and (connection, None) when a connection is lost.
        secret: what connections over TCP must know.
        unsent_limit: bytes buffered for a worker that does not read.

    Raises:
        OSError: it cannot listen there, as where there is a file of another kind.
        ValueError: TCP without a secret.
    """

    def __init__(
        self,
        address: Path | TcpAddress,
        inbox: Inbox,
        *,
        secret: bytes | None = None,
        unsent_limit: int = 16 * 1024 * 1024,
    ) -> None:
        if isinstance(address, TcpAddress) and not secret:
            raise ValueError("An engine that listens on TCP needs a secret.")
        self._path = address if isinstance(address, Path) else None
        self._inbox = inbox
        self._unsent_limit = unsent_limit
        self._listener = _listen(address) if isinstance(address, Path) else _listen_tcp(address)
        # Guards what both threads touch: the connections, their `unsent` and the greeting. Sockets are registered,
        # changed and closed by the loop's thread only.
        self._lock = threading.Lock()
        self._ids = count()
        self._connections: dict[int, _Connection] = {}
        self._greeting: FromEngine | None = None
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._guests = Guests(secret, self._selector, self._admit) if secret and self._path is None else None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._flush_all)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="engine-socket", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port that it listens on, also if 0 was asked for."""
        return int(self._listener.getsockname()[1])

    def announce(self, message: FromEngine) -> None:
        """Send a message to all workers now, and to new connections until the next announcement."""
        with self._lock:
            self._greeting = message
            for connection in self._connections.values():
                self._queue(connection, message)
        self._wake()

    def send(self, to: int, message: FromEngine) -> None:
        """Send a message to the worker of connection `to`; ignored if that is gone, which the inbox reports.

        Bytes that the socket takes are written before this returns, so that they arrive even if the process is killed.
        """
        with self._lock:
            connection = self._connections.get(to)
            if connection is None:
                return
            self._queue(connection, message)
            # Under the lock: the loop's thread may be writing the same connection, and frames must not be mixed.
            sent = not connection.closing and _write(connection) and not connection.unsent
        if not sent:
            self._wake()

    def close(self) -> None:
        """Write what the sockets take at once, then close all connections and remove the socket."""
        # Set before the wake-up, so that the loop sees it when `select` returns.
        self._closing = True
        self._wake()
        self._thread.join()
        # Not by the thread: it may have seen `_closing` before the wake-up was sent.
        self._wake_sender.close()

    def _queue(self, connection: _Connection, message: FromEngine) -> None:
        if connection.closing:
            return
        connection.unsent += encode_frame(message)
        if len(connection.unsent) > self._unsent_limit:
            log.warning("worker.dropped", connection=connection.id, unsent=len(connection.unsent))
            # Marked, not closed: this may be the engine's thread, while the loop selects on the socket. A descriptor
            # closed here could be given to a new connection before the selector knows.
            connection.closing = True

    def _wake(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # full: the thread has been woken already; or it has ended
            self._wake_sender.send(b"\0")

    def _run(self) -> None:
        while not self._closing:
            ready = self._selector.select(self._select_timeout())
            for key, events in ready:
                # An earlier handler of this round may have dropped the connection: `_read` then gets an OSError and
                # `_flush` finds no such id.
                handle: Callable[[int], None] = key.data
                handle(events)
            # Also if something arrives all the time: an engine at work never has a round without.
            if self._guests:
                self._guests.expire()
            if not ready:
                self._repeat_loading()
        for connection in list(self._connections.values()):
            self._flush(connection)
            self._drop(connection)
        if self._guests is not None:
            self._guests.close()
        for end in (self._listener, self._wake_receiver):
            end.close()
        self._selector.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _select_timeout(self) -> float | None:
        """Seconds after which there is something to do, whatever arrives; None: there is not."""
        if isinstance(self._greeting, Loading):
            return _LOADING_INTERVAL
        return TIMEOUT if self._guests else None

    def _repeat_loading(self) -> None:
        """Send the progress of loading again, so that workers do not take the engine for hung."""
        with self._lock:
            if isinstance(self._greeting, Loading):
                for connection in self._connections.values():
                    self._queue(connection, self._greeting)
        self._wake()

    def _flush_all(self, _: int) -> None:
        self._wake_receiver.recv(_CHUNK)
        for connection in list(self._connections.values()):
            self._flush(connection)

    def _accept(self, _: int) -> None:
        try:
            peer, _address = self._listener.accept()
        except OSError as error:  # the worker left at once, or the process is out of file descriptors
            log.warning("worker.refused", error=str(error))
            return
        peer.setblocking(False)
        if self._guests is not None:
            self._guests.greet(peer)
        else:
            self._admit(peer)

    def _admit(self, peer: socket.socket) -> None:
        """Serve a connection."""
        connection = _Connection(next(self._ids), peer)
        self._selector.register(peer, selectors.EVENT_READ, lambda events: self._serve(connection, events))
        with self._lock:
            # Registering and greeting in one step: no announcement can fall between them and be missed, or be sent
            # twice.
            self._connections[connection.id] = connection
            if self._greeting is not None:
                self._queue(connection, self._greeting)
        self._flush(connection)

    def _serve(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read(connection)
        if events & selectors.EVENT_WRITE:
            self._flush(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_CHUNK)
            messages = connection.reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            log.warning("worker.lost", connection=connection.id, error=str(error))
            self._drop(connection)
            return
        for message in messages:
            # Whole messages only; `reader` keeps the beginning of a frame for the next call.
            self._inbox.put((connection.id, message))
        # End of stream: the worker closed its end. What it sent before was passed on above.
        if not data:
            self._drop(connection)

    def _flush(self, connection: _Connection) -> None:
        """Write what the socket takes; wait for it to be writable again if bytes are left."""
        if connection.id not in self._connections:
            return
        with self._lock:
            lost = connection.closing or not _write(connection)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if lost:
            self._drop(connection)
            return
        key = self._selector.get_key(connection.socket)
        # EVENT_WRITE only while bytes are left: a writable socket would otherwise make `select` return at once, for
        # ever.
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            # Under the lock, so that `send` cannot queue to a closed socket; and once, so that the inbox gets one
            # report.
            if self._connections.pop(connection.id, None) is None:
                return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._inbox.put((connection.id, None))


def _write(connection: _Connection) -> bool:
    """Write as much of `unsent` as the socket takes; False if the worker is gone."""
    try:
        while connection.unsent:
            # A memoryview avoids a copy of what is left. It is released when `send` returns: a bytearray with an
            # exported buffer cannot be shortened (BufferError).
            sent = connection.socket.send(memoryview(connection.unsent)[:_CHUNK])
            del connection.unsent[:sent]
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _listen(path: Path) -> socket.socket:
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    path.chmod(0o600)  # before listen(): until then no connection is possible
    listener.listen()
    listener.setblocking(False)
    return listener


def _listen_tcp(address: TcpAddress) -> socket.socket:
    # One family and one address: a host name that has several is refused by `bind` where it is not of this machine.
    family, kind, protocol, _, at = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A port may be taken again at once after its engine has died.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(at)
    except OSError:
        listener.close()
        raise
    listener.listen()
    listener.setblocking(False)
    return listener
