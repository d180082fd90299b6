"""The gRPC server of a worker: its port, TLS and limits, and its end.

Strategy: grpcio opens its own sockets and cannot be given one. Each worker listens on the same port (SO_REUSEPORT),
which the supervisor keeps reserved, and the kernel spreads connections over the workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
from grpc import aio

from gateway.config import Grpc, ServerSection
from gateway.grpc.calls import Calls
from gateway.grpc.health import HealthChecks
from gateway.mounts import Operation
from gateway.service import Service

_SWEEP = 1.0
"""Seconds between two looks for clients that take nothing."""
_PING = 10_000
"""Milliseconds between two pings of a client, at least; one that pings more often loses its connection."""


class GrpcServer:
    """The gRPC server of a worker.

    Args:
        service: the worker's.
        operations: the methods, by path.
        port: where it listens; 0 picks a free one.
    """

    def __init__(self, service: Service, operations: Mapping[str, Operation], port: int) -> None:
        self._section: ServerSection = service.config.server
        self._limits = service.limits
        self._port = port
        self._calls = Calls(service)
        services = {path.split("/")[1] for path in operations}
        handlers = HealthChecks(service, services).handlers()
        for path, operation in operations.items():
            if operation.route.streams:
                handlers[path] = grpc.stream_stream_rpc_method_handler(self._calls.stream(operation))
            else:
                handlers[path] = grpc.unary_unary_rpc_method_handler(self._calls.unary(operation))
        self._handlers = handlers
        self._server: aio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, tasks: set[asyncio.Task[None]]) -> int:
        """Listen; returns the port.

        Args:
            tasks: gets the tasks of all requests, which the caller waits for between `end` and `close`.

        Raises:
            RuntimeError: the port is taken.
        """
        self._calls.tasks = tasks
        limits = self._limits
        options = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", max(limits.max_body, limits.max_image_body)),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.max_header_bytes),
            ("grpc.absolute_max_metadata_size", limits.max_header_bytes),
            ("grpc.server_handshake_timeout_ms", int(limits.header_timeout * 1000)),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING),
            ("grpc.keepalive_permit_without_calls", 1),
            # Identity alone: as over HTTP, a message that unpacks to a thousand times its size is not accepted.
            ("grpc.compression_enabled_algorithms_bitset", 1),
        ]
        self._server = aio.server(options=options, maximum_concurrent_rpcs=limits.max_connections)
        self._server.add_generic_rpc_handlers((_Handlers(self._handlers),))
        settings = self._section.grpc or Grpc()
        address = _address(settings.host or self._section.host, self._port)
        if self._section.ssl_certfile is not None and settings.tls:
            port = int(self._server.add_secure_port(address, _credentials(self._section)))
        else:
            port = int(self._server.add_insecure_port(address))
        await self._server.start()
        self._sweeping = asyncio.create_task(self._sweep())
        return port

    def end(self) -> None:
        """Accept no more calls. Requests that are being answered go on."""
        self._calls.ending.set()
        if self._server is not None:
            self._stopping = asyncio.create_task(self._server.stop(self._section.drain_timeout))

    async def close(self) -> None:
        """End the calls that are left. To be called after `end`."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            await self._server.stop(_SWEEP)
        if self._stopping is not None:
            await self._stopping

    async def _sweep(self) -> None:
        """End the calls of clients that take nothing of their answers."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            oldest = loop.time() - self._limits.write_stall
            for call in [call for call, since in self._calls.writing.items() if since < oldest]:
                call.cancel()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """The handlers of all methods, by path."""

    def __init__(self, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call; None: there is no such method (UNIMPLEMENTED)."""
        return self._handlers.get(handler_call_details.method)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(server: ServerSection) -> grpc.ServerCredentials:
    """TLS with the server's certificate, which is read again when it has changed."""
    read = _reader(server)
    return grpc.dynamic_ssl_server_credentials(
        read(), read, require_client_authentication=server.ssl_ca_certs is not None
    )


def _reader(server: ServerSection) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """What reads the certificate, for each handshake: None if it is the one that was read last."""
    assert server.ssl_certfile is not None
    certificate, key = Path(server.ssl_certfile), Path(server.ssl_keyfile or server.ssl_certfile)
    authorities = Path(server.ssl_ca_certs) if server.ssl_ca_certs is not None else None
    known: list[bytes] = []

    def read() -> grpc.ServerCertificateConfiguration | None:
        found = [file.read_bytes() for file in (certificate, key, authorities) if file is not None]
        if found == known:
            return None
        known[:] = found
        return grpc.ssl_server_certificate_configuration([(found[1], found[0])], found[2] if authorities else None)

    return read
