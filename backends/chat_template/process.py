"""The worker's side of a process that renders a chat template (`backends.chat_template.child`)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from backends.chat_template.child import BEYOND_LIMITS, REPLY, REQUEST
from backends.chat_template.limits import Limits

_SCRIPT = Path(__file__).with_name("child.py")
# The whole environment of a child: it sees no keys. One arena, since threads of others are no reason to reserve more
# address space, which is limited (mallopt(3)).
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
_TIMEOUT = 30.0
"""Seconds of wall-clock time for a chat, its child's start included; only a stopped child or machine takes as long."""
_READ_SIZE = 1 << 16


class TemplateProcess:
    """A child process with one template, which renders one chat at a time. Started at first use and after a kill.

    Args:
        setup: the first request of a child, which sets the template up.
        limits: what a child may take.
    """

    def __init__(self, setup: bytes, limits: Limits) -> None:
        self._setup = setup
        self._limits = limits
        self._lock = asyncio.Lock()
        self._child: _Child | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the reply; `BEYOND_LIMITS` if the child was killed over this request."""
        async with self._lock:
            for _ in range(2):
                child = self._child = self._child or _Child(self._setup, self._limits)
                try:
                    async with asyncio.timeout(_TIMEOUT):
                        return await child.ask(request)
                except (TimeoutError, ConnectionError):
                    closed = self._child is not child
                    self._drop(child)
                    # The child may have died over an earlier request, whose reader was cancelled: that is not this
                    # one's fault, and it is asked again.
                    if closed or not child.was_behind:
                        break
                except BaseException:
                    if child.sending:  # half a request is in the socket
                        self._drop(child)
                    raise
            return BEYOND_LIMITS, b""

    def close(self) -> None:
        """Kill the child. Idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        if not self._lock.locked():  # else whoever waits for a reply notices, and closes the socket
            child.close()

    def _drop(self, child: _Child) -> None:
        self._child = None
        child.close()


class _Child:
    def __init__(self, setup: bytes, limits: Limits) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own script
                command(limits),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
            )
        self._socket.setblocking(False)
        self._buffer = bytearray()
        self._longest = limits.output_bytes
        self._unsent = REQUEST.pack(0, len(setup)) + setup
        self._sent = self._answered = 0
        self.sending = False
        self.was_behind = False
        """Whether, when the last request was sent, the reply to an earlier one had not been read: nobody waited."""

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and the body of its reply.

        Raises:
            ConnectionError: the child has ended.
        """
        self.was_behind = self._answered < self._sent
        self._sent += 1
        number, unsent = self._sent, self._unsent
        self.sending, self._unsent = True, b""
        await asyncio.get_running_loop().sock_sendall(
            self._socket, unsent + REQUEST.pack(number, len(request)) + request
        )
        self.sending = False
        while True:
            answered, status, body = await self._reply()
            self._answered = answered
            # An earlier reply is of a request whose reader was cancelled. The first one counts if setting up failed.
            if answered == number or (answered == 0 and status):
                return status, body

    async def _reply(self) -> tuple[int, int, bytes]:
        """Read a reply. What has been read stays in the buffer if this is cancelled."""
        await self._fill(REPLY.size)
        number, status, length = REPLY.unpack_from(self._buffer)
        if length > self._longest:  # the child does not do what it was started for
            raise ConnectionError("The reply is longer than any text.")
        await self._fill(REPLY.size + length)
        body = bytes(self._buffer[REPLY.size : REPLY.size + length])
        del self._buffer[: REPLY.size + length]
        return number, status, body

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            # Not `sock_recv`: what that has read is lost if it is cancelled in the same turn of the event loop, and the
            # next chat would get the rest of this reply.
            try:
                data = self._socket.recv(_READ_SIZE)
            except BlockingIOError:
                await self._readable()
                continue
            if not data:
                raise ConnectionResetError("The child has ended.")
            self._buffer += data

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        loop.add_reader(self._socket, event.set)
        try:
            await event.wait()
        finally:
            loop.remove_reader(self._socket)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._socket.close()


def ask_once(requests: list[bytes], limits: Limits) -> list[tuple[int, bytes]]:
    """Ask a child of its own, and wait: the replies, as many as there were before it ended. Blocks."""
    data = b"".join(REQUEST.pack(number, len(request)) + request for number, request in enumerate(requests))
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            command(limits),
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            timeout=_TIMEOUT,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return []
    replies: list[tuple[int, bytes]] = []
    at = 0
    while at < len(done):
        _, status, length = REPLY.unpack_from(done, at)
        at += REPLY.size + length
        replies.append((status, done[at - length : at]))
    return replies


def command(limits: Limits) -> list[str]:
    """The command that starts a child. In isolated mode neither variables nor the working directory change imports."""
    return [sys.executable, "-I", str(_SCRIPT), str(limits.memory), str(limits.seconds), str(os.getpid())]
