"""One worker: ``python -m gateway.worker``, started by the supervisor with its listening sockets.

Its orders come as JSON on standard input, which then stays open: when it ends, the supervisor is gone and the worker
goes too. SIGTERM: not ready at once, no new connection after the drain delay, exit when the last stream has ended.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from gateway import logging
from gateway.app import create_app
from gateway.config import Config


class Orders(msgspec.Struct, frozen=True):
    """What a worker is told: `sockets` are inherited file descriptors, `folder` is where workers share their counts,
    `slot` its place there, maybe after one that ended.
    """

    config: Config
    sockets: tuple[int, ...]
    log_level: str = "info"
    folder: str | None = None
    slot: str | None = None


class _Server(uvicorn.Server):
    """uvicorn that drains before it stops, and exits with 0."""

    def __init__(self, config: uvicorn.Config, service: Any) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait_for_orphanhood, daemon=True).start()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - uvicorn's signature
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drain)

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


def main() -> None:
    """Serve until told to stop."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    logging.configure(orders.log_level)
    app = create_app(orders.config, folder=Path(orders.folder) if orders.folder else None, slot=orders.slot)
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(orders.config.server.drain_timeout),
    )
    gc.freeze()  # requests in flight are many and die young: by default the collector walks them all too often
    gc.set_threshold(50_000, 20, 50)
    server = _Server(config, app.state.service)
    server.run([socket.socket(fileno=fd) for fd in orders.sockets])


if __name__ == "__main__":
    main()
