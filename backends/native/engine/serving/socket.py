"""The engine's end of its Unix socket: a thread reads all workers' frames, and writes what cannot be written at once.

`send` never waits. What a worker does not read in time is kept up to a limit; beyond it the worker is taken for dead,
its connection closed and reported lost. A new connection is greeted with the latest announcement (`Loading`,
`Ready`).
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
from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
from backends.native.protocol.messages import FromEngine, Loading, ToEngine

log = structlog.get_logger()

_CHUNK = 256 * 1024
_SIGN_OF_LIFE = 5.0  # seconds after which a loading engine says again how far it is


@dataclass(slots=True, eq=False)
class _Connection:
    """A worker. `unsent` is guarded by the lock of `Connections`, the rest is the thread's."""

    id: int
    socket: socket.socket
    reader: FrameReader[ToEngine] = field(default_factory=lambda: FrameReader(ToEngine))
    unsent: bytearray = field(default_factory=bytearray)
    doomed: bool = False


class Connections:
    """Listens on a Unix socket and carries frames between its connections and an inbox.

    Args:
        path: of the socket; made with mode 0600. A socket left there by an earlier engine is replaced.
        inbox: gets (connection, message), and (connection, None) when a connection is lost.
        unsent_limit: bytes kept for a worker that does not read.
    """

    def __init__(self, path: Path, inbox: Inbox, *, unsent_limit: int = 16 * 1024 * 1024) -> None:
        self._path = path
        self._inbox = inbox
        self._unsent_limit = unsent_limit
        self._listener = _listen(path)
        self._lock = threading.Lock()
        self._ids = count()
        self._connections: dict[int, _Connection] = {}
        self._greeting: FromEngine | None = None
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._answer_bell)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="engine-connections", daemon=True)
        self._thread.start()

    def announce(self, message: FromEngine) -> None:
        """Tell all workers, and those that come later until the next announcement."""
        with self._lock:
            self._greeting = message
            for connection in self._connections.values():
                self._queue(connection, message)
        self._ring()

    def send(self, connection: int, message: FromEngine) -> None:
        """Tell one worker. A connection that is gone is ignored: the inbox says or will say so.

        What the socket takes is written before this returns: the worker will hear it even if we are killed now.
        """
        with self._lock:
            found = self._connections.get(connection)
            if found is None:
                return
            self._queue(found, message)
            told = not found.doomed and _write(found) and not found.unsent
        if not told:
            self._ring()

    def close(self) -> None:
        """Send what can be sent at once, then close everything."""
        self._closing = True
        self._ring()
        self._thread.join()

    def _queue(self, connection: _Connection, message: FromEngine) -> None:
        if connection.doomed:
            return
        connection.unsent += encode_frame(message)
        if len(connection.unsent) > self._unsent_limit:
            log.warning("worker.dropped", connection=connection.id, unsent=len(connection.unsent))
            connection.doomed = True

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it is ringing already
            self._ringer.send(b"\0")

    def _run(self) -> None:
        while not self._closing:
            found = self._selector.select(_SIGN_OF_LIFE if isinstance(self._greeting, Loading) else None)
            for key, events in found:
                handle: Callable[[int], None] = key.data
                handle(events)
            if not found:
                self._say_again()
        for connection in list(self._connections.values()):
            self._flush(connection)
            self._drop(connection)
        for end in (self._listener, self._bell, self._ringer):
            end.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _say_again(self) -> None:
        """Tell how far loading is, so that nobody takes us for hung."""
        with self._lock:
            if isinstance(self._greeting, Loading):
                for connection in self._connections.values():
                    self._queue(connection, self._greeting)
        self._ring()

    def _answer_bell(self, _: int) -> None:
        self._bell.recv(_CHUNK)
        for connection in list(self._connections.values()):
            self._flush(connection)

    def _accept(self, _: int) -> None:
        try:
            peer, _address = self._listener.accept()
        except OSError as error:  # it left at once, or we are out of descriptors
            log.warning("worker.refused", error=str(error))
            return
        peer.setblocking(False)
        connection = _Connection(next(self._ids), peer)
        self._selector.register(peer, selectors.EVENT_READ, lambda events: self._serve(connection, events))
        with self._lock:
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
            self._inbox.put((connection.id, message))
        if not data:
            self._drop(connection)

    def _flush(self, connection: _Connection) -> None:
        """Write what the socket takes, and ask to be told when it takes more."""
        if connection.id not in self._connections:
            return
        with self._lock:
            lost = connection.doomed or not _write(connection)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if lost:
            self._drop(connection)
            return
        key = self._selector.get_key(connection.socket)
        if key.events != wanted:
            self._selector.modify(connection.socket, wanted, key.data)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            if self._connections.pop(connection.id, None) is None:
                return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._inbox.put((connection.id, None))


def _write(connection: _Connection) -> bool:
    """Send as much as goes at once; False if the worker is gone."""
    try:
        while connection.unsent:
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
    path.chmod(0o600)  # before listen(): until then nobody can connect
    listener.listen()
    listener.setblocking(False)
    return listener
