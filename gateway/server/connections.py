"""The connections of one worker: makes them with their limits, and ends those that are late."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import structlog
from msgspec.structs import replace

from gateway.config import Limits
from gateway.http.entrance import Entrance
from gateway.server.client_connection import ClientConnection
from gateway.server.request_head import HeadReader

log = structlog.get_logger()

_RESERVED_FILES = 64
_FEWEST = 8
_SWEEP = 0.25
"""Seconds between two sweeps at most: a connection may be ended one late, a stalled reader a quarter of its limit."""


class Connections:
    """uvicorn's `http`: called for each new connection.

    Args:
        limits: of requests and connections.
        on_refused: called with a status or another reason for each request that ends here; returns its request id.
        entrance: asked first what answers a request; None: the application is called.
    """

    def __init__(self, limits: Limits, on_refused: Callable[[str], str], entrance: Entrance | None) -> None:
        # A connection to an upstream may be needed for each one of a client. Files and the engine's socket take some.
        free = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES) // 2
        self._limits = replace(limits, max_connections=max(_FEWEST, min(limits.max_connections, free)))
        self._on_refused = on_refused
        self._heads = HeadReader(limits)
        self._entrance = entrance
        self._open: set[Any] = set()
        self._sweeping = False
        # One timer for all connections, instead of one or two for each request. A limit is kept to a quarter of itself,
        # or to `_SWEEP`.
        self._interval = min(_SWEEP, limits.header_timeout / 4, limits.write_stall / 4)

    def __call__(self, **arguments: Any) -> ClientConnection:
        """Make the protocol of a new connection."""
        made = ClientConnection(self._limits, self._on_refused, self._heads, self._entrance, **arguments)
        # uvicorn's set, to which a connection adds itself when it is made, and which it leaves when it is lost.
        self._open = made.connections
        if not self._sweeping:
            self._sweeping = True
            made.loop.call_later(self._interval, self._sweep, made.loop)
        return made

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [*self._open]:
            try:
                connection.end_if_late(now)
            except Exception as error:  # a bug at one connection: the limits of all others stay in force
                log.error("connection.not_swept", error=repr(error))
                connection.transport.abort()
        # Without connections the loop may rest.
        self._sweeping = bool(self._open)
        if self._sweeping:
            loop.call_later(self._interval, self._sweep, loop)
