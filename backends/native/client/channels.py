"""Ways to an engine: over a Unix socket, or to a thread of this process. Either carries the same messages."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Protocol, cast

import structlog

from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
from backends.native.protocol.messages import Failed, FromEngine, ToEngine

log = structlog.get_logger()

Deliver = Callable[[FromEngine], None]
Lost = Callable[[], None]

_CREDENTIALS = struct.Struct("3i")  # of a socket's other end: process, user and group id


class Channel(Protocol):
    """An open way to an engine."""

    def send(self, message: ToEngine) -> None:
        """Tell the engine, without waiting; into the void if it is gone."""
        ...

    def kill(self) -> None:
        """End the engine, however stuck it is, if it is a process of its own; whoever runs it starts another."""
        ...

    async def aclose(self) -> None:
        """Give the way up; the engine frees what it did for us."""
        ...


class Connect(Protocol):
    """Opens a way to an engine."""

    async def __call__(self, deliver: Deliver, lost: Lost) -> Channel:
        """Open it.

        Args:
            deliver: called in the event loop with every message of the engine, not before this returned.
            lost: called in the event loop once the engine is gone, and nothing after it.

        Raises:
            OSError: there is no engine yet.
        """
        ...


class _Socket(asyncio.Protocol):
    def __init__(self, deliver: Deliver, lost: Lost) -> None:
        self._deliver = deliver
        self._lost = lost
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases
        self._transport.pause_reading()  # until the connection was handed over

    def begin(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._deliver(message)
        except FrameError as error:
            log.error("engine.misunderstood", error=str(error))
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._lost()

    def send(self, message: ToEngine) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def kill(self) -> None:
        if self._transport is not None:
            pid = _peer(self._transport.get_extra_info("socket"))
            if pid not in (0, os.getpid()):  # 0: it is in a container of its own, and 0 to `kill` is our own group
                with suppress(ProcessLookupError, PermissionError):  # it has just ended; it is somebody else's
                    os.kill(pid, signal.SIGKILL)

    async def aclose(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _peer(end: socket.socket) -> int:
    """The process at the other end; 0 if it cannot be seen from here."""
    pid, _, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def over_socket(path: str) -> Connect:
    """To the engine that listens on a Unix socket."""

    async def connect(deliver: Deliver, lost: Lost) -> Channel:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_unix_connection(lambda: _Socket(deliver, lost), path)
        protocol.begin()
        return protocol

    return connect


class _Thread:
    def __init__(self, options: EngineOptions, deliver: Deliver, lost: Lost) -> None:
        from backends.native.engine.serving.inprocess import InProcessEngine

        loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._lost = lost

        def forward(message: FromEngine) -> None:
            loop.call_soon_threadsafe(self._take, message)

        self._engine = InProcessEngine(options, forward)

    def _take(self, message: FromEngine) -> None:
        self._deliver(message)
        if isinstance(message, Failed):  # the thread has ended
            self._lost()

    def send(self, message: ToEngine) -> None:
        self._engine.send(message)

    def kill(self) -> None:
        """A thread cannot be."""

    async def aclose(self) -> None:
        await asyncio.to_thread(self._engine.close)


def in_process(options: EngineOptions) -> Connect:
    """To an engine of our own, in a thread; it is made by connecting."""

    async def connect(deliver: Deliver, lost: Lost) -> Channel:
        await asyncio.to_thread(import_module, "backends.native.engine.serving.inprocess")  # brings torch: seconds
        return _Thread(options, deliver, lost)

    return connect
