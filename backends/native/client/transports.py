"""Transports to an engine: a Unix socket, TCP, or a thread of this process. All carry the same messages."""

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

from backends.native.protocol import greeting
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
from backends.native.protocol.messages import Failed, FromEngine, ToEngine

log = structlog.get_logger()

_GREETING_TIMEOUT = 5.0
"""Seconds to connect to an engine over TCP and to greet it: a machine that is gone does not refuse, it says nothing."""

# Strategy: callbacks instead of queues. A message is handled in the iteration of the event loop in which it arrives,
# sending never waits, and `on_lost` is called once, after the last message. `EngineClient` needs no lock and no task
# per message.

OnMessage = Callable[[FromEngine], None]
OnLost = Callable[[], None]

_PEER_CREDENTIALS = struct.Struct("3i")  # `struct ucred` of SO_PEERCRED: process, user and group id


class SecretRefused(Exception):
    """An engine and this worker do not have the same secret; the text is for the operator."""


class Transport(Protocol):
    """An open connection to an engine. `remote`: the engine may be on another machine, with a clock of its own."""

    remote: bool

    def send(self, message: ToEngine) -> None:
        """Send a message without waiting; if the engine is gone, the message is dropped."""
        ...

    def kill(self) -> None:
        """Kill the engine's process, however stuck it is; its supervisor starts another. A thread is left alone."""
        ...

    async def aclose(self) -> None:
        """Disconnect; the engine frees what it holds for this worker."""
        ...


class Connect(Protocol):
    """Opens a transport to an engine."""

    async def __call__(self, on_message: OnMessage, on_lost: OnLost) -> Transport:
        """Connect.

        Args:
            on_message: called in the event loop with every message of the engine, not before this returned.
            on_lost: called in the event loop once the engine is gone; no message follows it.

        Raises:
            OSError: there is no engine yet.
            SecretRefused: there is one, with another secret.
        """
        ...


class _SocketTransport(asyncio.Protocol):
    """Frames over a Unix or TCP socket. What comes before `begin` is kept: `connect` has not returned yet."""

    def __init__(
        self,
        on_message: OnMessage,
        on_lost: OnLost,
        *,
        remote: bool = False,
        kill: Callable[[], None] | None = None,
    ) -> None:
        self.remote = remote
        self._kill = kill  # None: by the process id of a Unix socket's other end
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._stream: asyncio.Transport | None = None
        self._early: bytes | None = b""  # None once messages are passed on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream = cast(asyncio.Transport, transport)  # uvloop's has the methods but not the base class

    def begin(self) -> None:
        """Pass on messages from the next turn of the event loop on."""
        # Not `pause_reading` until then: uvloop reads all the same if it is called in `connection_made`.
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        early, self._early = self._early, None
        if early and self._stream is not None:  # no message follows `on_lost`
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data
            return
        try:
            # A message may be split over several calls, and one call may bring many messages.
            for message in self._reader.feed(data):
                self._on_message(message)
        except FrameError as error:
            # Behind a broken frame no frame boundary can be found: the connection is useless. `connection_lost`
            # follows, and the client connects again.
            log.error("engine.misunderstood", error=str(error))
            if self._stream is not None:
                self._stream.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._stream = None
        self._on_lost()

    def send(self, message: ToEngine) -> None:
        if self._stream is not None:
            # Never blocks: asyncio buffers what the kernel does not take.
            self._stream.write(encode_frame(message))

    def kill(self) -> None:
        if self._kill is not None:
            self._kill()
            return
        if self._stream is None:
            return
        pid = _peer_pid(self._stream.get_extra_info("socket"))
        if pid not in (0, os.getpid()):  # 0: the engine is in another PID namespace; `kill(0)` would signal our group
            with suppress(ProcessLookupError, PermissionError):  # it has just ended; it belongs to another user
                os.kill(pid, signal.SIGKILL)

    async def aclose(self) -> None:
        if self._stream is not None:
            # `abort` drops what is unsent: pings, and messages about sequences that the engine frees with
            # the connection.
            self._stream.abort()


def _peer_pid(end: socket.socket) -> int:
    """The process id of the socket's other end; 0 if it is in another PID namespace."""
    # unix(7): for the client, the credentials are those of the process that called `listen`, as of that call.
    pid, _, _ = _PEER_CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size))
    return int(pid)


def over_socket(path: str) -> Connect:
    """Connect to the engine that listens on the Unix socket at `path`."""

    async def connect(on_message: OnMessage, on_lost: OnLost) -> Transport:
        loop = asyncio.get_running_loop()
        _, transport = await loop.create_unix_connection(lambda: _SocketTransport(on_message, on_lost), path)
        transport.begin()
        return transport

    return connect


def over_tcp(address: TcpAddress, read_secret: Callable[[], bytes], kill: Callable[[], None] = lambda: None) -> Connect:
    """Connect to the engine that listens at `address`, and prove to each other to know the secret.

    The messages are not encrypted (see `protocol.greeting`). Without a secret, `read_secret` raises ValueError. `kill`
    kills the engine: by default nothing does, as only whoever started an engine elsewhere can.
    """

    async def connect(on_message: OnMessage, on_lost: OnLost) -> Transport:
        loop = asyncio.get_running_loop()
        try:
            secret = read_secret()
        except ValueError as error:
            raise SecretRefused(str(error)) from None
        async with asyncio.timeout(_GREETING_TIMEOUT):
            plain = await _greet(address, secret)
            try:
                _, transport = await loop.create_connection(
                    lambda: _SocketTransport(on_message, on_lost, remote=True, kill=kill), sock=plain
                )
            except BaseException:
                plain.close()
                raise
        transport.begin()
        return transport

    return connect


async def _greet(address: TcpAddress, secret: bytes) -> socket.socket:
    """A connected socket, of which exactly the greeting has been read."""
    loop = asyncio.get_running_loop()
    # One address: a name with several is that of several engines, and each needs a link of its own.
    family, kind, protocol, _, at = (await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))[0]
    plain = socket.socket(family, kind, protocol)
    try:
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(plain, at)
        challenge = await _read_exactly(plain, greeting.CHALLENGE_BYTES)
        answer = greeting.answer(secret, challenge)
        if answer is None:
            raise SecretRefused(f"What listens at {address} is no engine of this version.")
        await loop.sock_sendall(plain, answer)
        try:
            proof = await _read_exactly(plain, greeting.PROOF_BYTES)
        except ConnectionError:
            raise SecretRefused(f"The engine at {address} has another secret.") from None
        if not greeting.is_proof(secret, challenge, answer, proof):
            raise SecretRefused(f"The engine at {address} does not know the secret.")
    except BaseException:
        plain.close()
        raise
    return plain


async def _read_exactly(plain: socket.socket, size: int) -> bytes:
    """Read `size` bytes and no more: what follows them is for the transport.

    Raises:
        ConnectionError: the other end closed the connection before.
    """
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(plain, size - len(data))
        if not part:
            raise ConnectionResetError("The engine closed the connection while it was greeted.")
        data += part
    return data


class _ThreadTransport:
    """Messages to and from an engine in a thread, which is started with it."""

    remote = False

    def __init__(self, options: EngineOptions, on_message: OnMessage, on_lost: OnLost) -> None:
        # Imported here: a worker with an engine process must not import torch.
        from backends.native.engine.serving.inprocess import InProcessEngine

        loop = asyncio.get_running_loop()

        def deliver(message: FromEngine) -> None:  # in the engine's thread
            # The loop runs callbacks in order and not before `connect` has returned, as `Connect` requires.
            loop.call_soon_threadsafe(on_message, message)
            if isinstance(message, Failed):  # the thread ends
                loop.call_soon_threadsafe(on_lost)

        self._engine = InProcessEngine(options, deliver)
        self.send = self._engine.send

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed."""

    async def aclose(self) -> None:
        # `close` joins the thread, which first finishes its step, or loading.
        await asyncio.to_thread(self._engine.close)


def in_process(options: EngineOptions) -> Connect:
    """Start an engine in a thread of this process with each connection."""

    async def connect(on_message: OnMessage, on_lost: OnLost) -> Transport:
        await asyncio.to_thread(import_module, "backends.native.engine.serving.inprocess")  # imports torch: seconds
        return _ThreadTransport(options, on_message, on_lost)

    return connect
