"""One worker: ``python -m gateway.process.worker``, started by the supervisor with its listening sockets.

Its orders come as JSON on standard input, which then stays open: when it ends, the supervisor is gone and the worker
goes too. SIGTERM: not ready at once, no new connection after the drain delay, exit when the last stream has ended.
SIGINT: others have taken over, so no new connection from now on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from litestar import Litestar

from gateway.app import create_app
from gateway.config import Config, ServerSection
from gateway.observability import logging
from gateway.process.uvicorn_protocol import Connection

_GRACE, _LONGEST_GRACE = 0.5, 3.0
"""Seconds for requests that are on their way when the worker ends, and at most for those who have connected."""
_TURN = 0.05


class Orders(msgspec.Struct, frozen=True):
    """What a worker is told.

    Attributes:
        config: what to serve.
        sockets: inherited file descriptors.
        log_level: what to log.
        folder: where workers share their counts.
        slot: its place there, maybe after one that ended.
        serving: a file to make once it listens; it then waits before it does until every endpoint can answer.
    """

    config: Config
    sockets: tuple[int, ...]
    log_level: str = "info"
    folder: str | None = None
    slot: str | None = None
    serving: str | None = None


class _Server(uvicorn.Server):
    """uvicorn that drains before it stops, and exits with 0."""

    def __init__(self, config: uvicorn.Config, service: Any, serving: str | None) -> None:
        super().__init__(config)
        self._service = service
        self._serving = serving
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait_for_orphanhood, daemon=True).start()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._serving is not None:
            Path(self._serving).touch()  # noqa: ASYNC240 - once, an empty file

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connection, but what those send who have just connected or keep one open; then they are told to
        close it, and not cut off with a request on its way.
        """
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        await self._hear_out()
        await super().shutdown(sockets)

    async def _hear_out(self) -> None:
        """Wait for requests that are on their way. In turns of the loop, not in seconds: after a pause of our own, what
        has come meanwhile is still to be read.
        """
        waited = 0.0
        while waited < (_LONGEST_GRACE if self._expecting() else _GRACE):
            await asyncio.sleep(_TURN)
            waited += _TURN
            if not self.server_state.connections:
                return

    def _expecting(self) -> bool:
        """Whether somebody has connected who has not asked anything yet."""
        return any(isinstance(each, Connection) and each.cycle is None for each in self.server_state.connections)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - uvicorn's signature
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop if sig == signal.SIGINT else self._drain)

    def _drain(self) -> None:
        assert self._loop is not None
        self._service.draining = True
        self._loop.call_later(self._service.config.server.drain_delay, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    def _wait_for_orphanhood(self) -> None:
        while os.read(0, 1):
            pass
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop)


def uvicorn_config(app: Litestar, server: ServerSection) -> uvicorn.Config:
    """How uvicorn serves.

    An idle connection is kept for longer than clients and load balancers do (by default up to 60 s): whoever closes
    first may close on a request that the other has just sent.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=server.keep_alive,
        timeout_graceful_shutdown=int(server.drain_timeout),
    )


def main() -> None:
    """Serve until told to stop."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    logging.configure(orders.log_level)
    folder = Path(orders.folder) if orders.folder else None
    app = create_app(orders.config, folder=folder, slot=orders.slot, waits=orders.serving is not None)
    gc.freeze()  # requests in flight are many and die young: by default the collector walks them all too often
    gc.set_threshold(50_000, 20, 50)
    server = _Server(uvicorn_config(app, orders.config.server), app.state.service, orders.serving)
    server.run([socket.socket(fileno=fd) for fd in orders.sockets])


if __name__ == "__main__":
    main()
