"""Real servers on the way to an upstream: TLS, a forward proxy, SOCKS, HTTP/2, a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events

from tests.faults.upstream import Play, Upstream

_REQUEST = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


def make_certificate(folder: Path, name: str, host: str = "localhost") -> Path:
    """A self-signed certificate for a host, with its key beside it: NAME.pem and NAME.key."""
    command = f"{_REQUEST} -subj /CN={name} -keyout {name}.key -out {name}.pem -addext subjectAltName=DNS:{host}"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.pem"


def server_context(certificate: Path, clients: Path | None = None) -> ssl.SSLContext:
    """For a server with that certificate, which asks its clients for one that `clients` has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


@asynccontextmanager
async def secure(play: Play, context: ssl.SSLContext) -> AsyncIterator[Upstream]:
    """An upstream behind TLS."""
    made = Upstream(play)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def on_socket(play: Play, path: Path) -> AsyncIterator[Upstream]:
    """An upstream at a Unix socket."""
    made = Upstream(play)
    server = await asyncio.start_unix_server(made.serve, path)
    try:
        yield made
    finally:
        server.close()


@dataclass
class Proxy:
    """What a proxy was asked for, and where it listens."""

    asked: list[str] = field(default_factory=list)
    port: int = 0


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, first: bytes = b"") -> None:
    """Connect a client with a port of this machine, whatever name it has asked for."""
    there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
    there_writer.write(first)
    try:
        await asyncio.gather(_pipe(reader, there_writer), _pipe(there_reader, writer))
    finally:
        there_writer.transport.abort()


@asynccontextmanager
async def _listening(
    made: Proxy, serve: Callable[..., Coroutine[Any, Any, None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[Proxy]:
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()
            running.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        tasks = [*running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def forward_proxy(credentials: str = "") -> object:
    """An HTTP proxy: CONNECT, and requests with the whole URL. Every name is this machine's."""
    made = Proxy()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            line = head.split(b"\r\n")[0].decode()
            made.asked.append(line)
            if credentials and credentials.encode() not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                writer.close()
                return
            method, target, _ = line.split()
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _join(reader, writer, int(target.rpartition(":")[2]))
            else:
                host = target.split("/")[2]
                await _join(reader, writer, int(host.rpartition(":")[2]), head.replace(f"http://{host}".encode(), b""))

    return _listening(made, serve)


def socks_proxy() -> object:
    """A SOCKS 5 proxy without authentication. Every name is this machine's."""
    made = Proxy()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            _, methods = await reader.readexactly(2)
            await reader.readexactly(methods)
            writer.write(b"\x05\x00")
            *_, kind = await reader.readexactly(4)
            size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
            host = await reader.readexactly(size)
            port = int.from_bytes(await reader.readexactly(2), "big")
            made.asked.append(f"{host.decode('latin-1')}:{port}")
            writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
            await _join(reader, writer, port)

    return _listening(made, serve)


@asynccontextmanager
async def http2_server(
    body: bytes,
    context: ssl.SSLContext | None = None,
    before: Callable[[bytes], Coroutine[Any, Any, None]] | None = None,
) -> AsyncIterator[Proxy]:
    """A server that speaks HTTP/2 only, and answers every request with `body`, once `before` its body has ended."""
    made = Proxy()

    async def answer(
        connection: h2.connection.H2Connection, writer: asyncio.StreamWriter, asked: bytes, to: int
    ) -> None:
        if before is not None:
            await before(asked)
        connection.send_headers(to, [(":status", "200"), ("content-type", "application/json")])
        connection.send_data(to, body, end_stream=True)
        writer.write(connection.data_to_send())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        bodies = defaultdict[int, bytes](bytes)
        async with asyncio.TaskGroup() as answering:
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        fields = dict(event.headers or ())
                        made.asked.append(f"{fields[b':method'].decode()} {fields[b':path'].decode()}")
                    elif isinstance(event, h2.events.DataReceived):
                        bodies[event.stream_id] += event.data
                    elif isinstance(event, h2.events.StreamEnded):
                        asked = bodies.pop(event.stream_id, b"")
                        answering.create_task(answer(connection, writer, asked, event.stream_id))
                writer.write(connection.data_to_send())
        writer.close()

    if context is not None:
        context.set_alpn_protocols(["h2"])
    async with _listening(made, serve, context):
        yield made
