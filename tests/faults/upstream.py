"""A scripted upstream: sends given bytes and faults, which a real server would not produce on demand.

A `Play` gives the steps of a response, raw bytes and what happens between them; `Upstream` plays one per request.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    """A request that the upstream received."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Wait:
    """Wait for an event."""

    event: asyncio.Event


@dataclass(frozen=True)
class Hang:
    """Send nothing more until the client disconnects."""


@dataclass(frozen=True)
class Reset:
    """Reset the connection (RST)."""


@dataclass(frozen=True)
class Close:
    """Close the connection (FIN)."""


Step = bytes | Pause | Wait | Hang | Reset | Close
Play = Callable[[Asked], tuple[Step, ...]]


@dataclass
class Upstream:
    """A server. `asked` are the requests received; `gone` counts clients that disconnected during a response."""

    play: Play
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    gone: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            while (asked := await _read(reader, number)) is not None:
                self.asked.append(asked)
                for step in self.play(asked):
                    if not await _do(step, reader, writer):
                        return
        except ConnectionError:
            self.gone += 1
        finally:
            self.open -= 1
            writer.close()


async def _read(reader: asyncio.StreamReader, number: int) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *lines = head.split("\r\n")
    headers: dict[str, str] = {}
    for name, _, value in (text.partition(":") for text in lines if text):
        known = headers.get(name.lower())  # several lines of one name are a list
        headers[name.lower()] = value.strip() if known is None else f"{known}, {value.strip()}"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(line, headers, body, number)


async def _do(step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Play a step; whether the connection stays open."""
    if isinstance(step, bytes):
        writer.write(step)
        await writer.drain()
    elif isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, Wait):
        await step.event.wait()
    elif isinstance(step, Hang):
        await reader.read(1)
        raise ConnectionResetError
    elif isinstance(step, Reset):
        linger = struct.pack("ii", 1, 0)  # makes the abort an RST instead of a FIN
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return False
    else:
        return False
    return True


@asynccontextmanager
async def upstream(play: Play) -> AsyncIterator[Upstream]:
    """A running upstream."""
    made = Upstream(play)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=1024)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(_empty(made), 60)


async def _empty(made: Upstream) -> None:
    while made.open:  # noqa: ASYNC110 - the handlers end when their clients are gone
        await asyncio.sleep(0.01)


def response(body: bytes, status: str = "200 OK", type: str = "application/json", more: str = "") -> bytes:
    """A whole response with a content-length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {type}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
"""The head of a stream."""

END = b"0\r\n\r\n"
"""The end of a chunked body."""


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
