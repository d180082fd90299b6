"""An HTTP worker, started by the supervisor with its listening sockets.

The worker reads its orders as JSON from standard input, which then stays open: when it is closed, the supervisor is
gone and the worker exits. On SIGTERM it reports not ready at once, accepts no connection after the drain delay, and
exits when its last stream has ended. On SIGINT other workers have taken over: it accepts no connection from then on.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog
import uvicorn
from litestar import Litestar
from uvicorn.lifespan.on import LifespanOn

from gateway.access.certificates import LOOK_EVERY, Certificates
from gateway.app import create_app
from gateway.config import ServerSection
from gateway.http.entrance import Entrance
from gateway.mounts import rpc_operations
from gateway.observability import logging
from gateway.process.heartbeat import beat
from gateway.process.orders import Orders
from gateway.registry import adapters
from gateway.server.client_connection import LINGER, ClientConnection
from gateway.server.connections import Connections
from gateway.service import Service
from gateway.ticks import next_tick
from schemas.errors import BackendUnavailable

if TYPE_CHECKING:
    from gateway.grpc.server import GrpcServer

log = structlog.get_logger()

_CLOSE_GRACE = 0.5
"""Seconds that open connections get at the end, for requests that are on their way."""
_FIRST_REQUEST_GRACE = 3.0
"""Seconds that connections get that have not sent a request yet."""
_POLL_INTERVAL = 0.05


class ParentWatch:
    """Notices that the supervisor is gone: standard input, which it holds open, ends.

    Attributes:
        on_end: called then, in a thread; until it is set, the process ends at once, as it serves nobody.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: os._exit(0)
        # A thread, since reading the pipe blocks, and a supervisor that was killed sends no signal.
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        # Nothing is sent after the orders; `read` returns b"" when the last writer is gone, however it ended.
        while os.read(0, 1):
            pass
        self.on_end()


class _SettledLifespan(LifespanOn):
    """Has uvicorn listen once every endpoint can answer, and not at all if one cannot.

    Here and not in the application's lifespan: there, the end of the wait would be an exception, which Litestar and
    uvicorn log with all of its traces although nothing is wrong with a worker that is stopped while its models load.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self) -> None:
        await super().startup()
        if self.should_exit:
            return
        try:
            await self._service.settled()
        except BackendUnavailable as error:
            log.info("worker.stopped", why=error.message)
            await self.shutdown()
            self.should_exit = True


class _Server(uvicorn.Server):
    """A uvicorn server that drains connections before it stops, and exits with 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Any,
        serving: str | None,
        heartbeat: int | None = None,
        parent: ParentWatch | None = None,
        grpc: GrpcServer | None = None,
    ) -> None:
        super().__init__(config)
        server: ServerSection = service.config.server
        self._limits = server.limits
        self._certificates = Certificates(server) if server.ssl_certfile is not None else None
        self._plain_ports = {listener.port for listener in server.listeners if not listener.tls}
        self._service = service
        self._parent = parent
        self._orphaned = False
        self._serving = serving
        self._heartbeat = heartbeat
        self._grpc = grpc
        self._is_stopping = threading.Event()  # for other threads
        self._exiting = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._heartbeat is not None:
            beat(self._loop, self._heartbeat)
        if self._parent is not None:
            self._parent.on_end = self._stop_orphaned
        await super().serve(sockets)
        if self._orphaned:
            # All is closed. The end of the process would wait for threads, which may be importing for half a minute.
            os._exit(0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._serving is not None:
            self.lifespan = _SettledLifespan(self.config, self._service)
        self._service.runs.tasks = self.server_state.tasks  # uvicorn waits for these, as for requests
        await super().startup([])  # uvicorn would give all sockets one TLS context, and a handshake a minute
        if self.started:
            self.servers = [await self._listen(each) for each in sockets or []]
            if self._certificates is not None:
                self._watch_certificates()
            if self._grpc is not None:
                await self._grpc.start(self.server_state.tasks)
        # uvicorn leaves `started` False if the lifespan says so: then the supervisor sees this process end instead.
        if self.started and self._serving is not None:
            Path(self._serving).touch()  # noqa: ASYNC240 - once, an empty file

    async def _listen(self, sock: socket.socket) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            self._protocol, sock=sock, backlog=self.config.backlog, **self._tls(sock)
        )

    def _tls(self, sock: socket.socket) -> dict[str, Any]:
        """The arguments with which the event loop accepts connections of a listening socket."""
        if self._certificates is None or sock.getsockname()[1] in self._plain_ports:
            return {}
        # A handshake is a part of the head that a client sends. At the end, what a client still sends is dropped for a
        # moment, so that its last answer is not lost (`ClientTransport.linger`).
        return {
            "ssl": self._certificates.context,
            "ssl_handshake_timeout": self._limits.header_timeout,
            "ssl_shutdown_timeout": LINGER,
        }

    def _watch_certificates(self) -> None:
        assert self._loop is not None
        assert self._certificates is not None
        self._certificates.refresh()
        self._loop.call_later(LOOK_EVERY, self._watch_certificates)

    async def main_loop(self) -> None:
        """Have each answer's date, until the server is to stop. uvicorn looks ten times a second whether it is."""
        time = asyncio.get_running_loop().time
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_tick(time(), 1.0)):
                    await self._exiting.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new connection, but answer requests on the open ones, with `connection: close`: no client is cut
        off with a request on its way.
        """
        if self._grpc is not None:
            self._grpc.end()
        # Order matters: `uvicorn.Server.shutdown` closes connections that have no request at that moment. A client that
        # has just sent one could see a reset, so those connections get a grace period first.
        queues = [each.dup() for each in sockets or []]
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        accepted: list[socket.socket] = []
        for queue in queues:
            accepted += _accept_all(queue)
            # At once: the kernel resets what it queues between the last `accept` and the last `close`.
            queue.close()
        # Side by side, since a handshake may wait for its client.
        await asyncio.gather(*map(self._serve_accepted, accepted))
        # RFC 9112, section 9.6: `close` announces that no further request is read on this connection.
        self.server_state.default_headers.append((b"connection", b"close"))
        await self._drain_connections()
        await super().shutdown(sockets)  # waits for the tasks of calls of gRPC, too
        if self._grpc is not None:
            await self._grpc.close()

    async def _serve_accepted(self, connection: socket.socket) -> None:
        # A client that does not speak TLS, or has left, is no reason to forget the others.
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, **self._tls(connection)
            )

    def _protocol(self) -> Any:
        """The protocol of a new connection, made as `uvicorn.Server.startup` makes it."""
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None)

    async def _drain_connections(self) -> None:
        """Wait for requests that are on their way. Counts sleeps instead of reading a clock: if this process was
        halted meanwhile, what has arrived is still to be read.
        """
        waited = 0.0
        # A client that has connected but sent nothing gets longer: its first request may still be on its way.
        while waited < (_FIRST_REQUEST_GRACE if self._awaits_first_request() else _CLOSE_GRACE):
            await asyncio.sleep(_POLL_INTERVAL)
            waited += _POLL_INTERVAL
            if not self.server_state.connections:
                return

    def _awaits_first_request(self) -> bool:
        """Whether a client has connected and has not sent a request yet."""
        connections = self.server_state.connections
        return any(isinstance(each, ClientConnection) and not each.requests for each in connections)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - uvicorn's signature
        # Replaces uvicorn's handler, which takes a second SIGINT as a forced exit and raises the signals again at the
        # end. It runs between two bytecodes of any code, so the loop does the rest.
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop if sig == signal.SIGINT else self._drain)

    def _drain(self) -> None:
        assert self._loop is not None
        # Not ready at once, but accepting: load balancers need the drain delay to notice.
        self._service.draining = True
        self._loop.call_later(self._service.config.server.drain_delay, self._stop)

    def _stop(self) -> None:
        self._service.draining = True  # also without a drain: clients that are cut learn why
        self.should_exit = True
        self._is_stopping.set()
        self._exiting.set()

    def _stop_orphaned(self) -> None:
        assert self._loop is not None
        self._orphaned = True
        self._loop.call_soon_threadsafe(self._service.orphan)
        self._loop.call_soon_threadsafe(self._stop)
        # Nobody is left to kill a worker whose loop does not turn any more.
        if not self._is_stopping.wait(self._service.config.server.hung_after):
            os._exit(1)


def _accept_all(queue: socket.socket) -> list[socket.socket]:
    """Accept the connections that the kernel has queued: their clients have sent requests already."""
    queue.setblocking(False)
    accepted: list[socket.socket] = []
    with suppress(BlockingIOError):
        while True:
            try:
                accepted.append(queue.accept()[0])
            except ConnectionAbortedError:  # the client has gone (accept(2))
                continue
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    break
                raise
    return accepted


def uvicorn_config(app: Litestar, server: ServerSection) -> uvicorn.Config:
    """How uvicorn serves.

    An idle connection is kept for longer than clients and load balancers do (by default up to 60 s): whoever closes
    first may close on a request that the other has just sent.
    """
    service: Service = app.state.service
    # Who has wrapped the application in another one wants that to be asked.
    entrance = app.asgi_handler if isinstance(app, Litestar) else None
    # `ws`: an upgrade would leave `ClientConnection` and its limits.
    # `log_config` None: structlog is configured already. `access_log` False: `request.finished` has more in one line.
    return uvicorn.Config(
        app,
        http=Connections(server.limits, service.refused, cast(Entrance | None, entrance)),  # type: ignore[arg-type]  # called like a class
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=server.keep_alive,
        timeout_graceful_shutdown=ceil(server.drain_timeout),
    )


def main() -> None:
    """Serve until a signal or the end of standard input."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    parent = ParentWatch()  # before the application is built, which may take seconds
    logging.configure(orders.log_level)
    folder = Path(orders.folder) if orders.folder else None
    app = create_app(orders.config, folder=folder, slot=orders.slot)
    # `freeze` moves what the application is made of out of the collector's sight.
    gc.freeze()  # many short-lived objects are in flight: by default the collector walks them all too often
    gc.set_threshold(50_000, 20, 50)
    gc.enable()  # off since the process began (`imports.run`)
    settings = uvicorn_config(app, orders.config.server)
    # The sockets are bound and listening: uvicorn only accepts.
    sockets = [socket.socket(fileno=fd) for fd in orders.sockets]
    grpc = _grpc(app.state.service, sockets.pop()) if orders.config.server.grpc is not None else None
    server = _Server(settings, app.state.service, orders.serving, orders.heartbeat, parent, grpc)
    server.run(sockets)


def _grpc(service: Service, reserved: socket.socket) -> GrpcServer:
    """The server for gRPC, on the port that a socket keeps."""
    # Only where it is configured: it needs a package that the gateway alone does not bring.
    from gateway.grpc.server import GrpcServer

    with reserved:
        port = int(reserved.getsockname()[1])
    return GrpcServer(service, rpc_operations(adapters(), service.config), port)
