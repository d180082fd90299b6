"""The connections of one worker: makes them with their limits, and ends those that are late."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from math import ceil
from typing import Any

import structlog
from msgspec.structs import replace

from gateway.config import Limits
from gateway.http.entrance import Entrance
from gateway.server.admission import Admission
from gateway.server.client_connection import ClientConnection
from gateway.server.request_head import HeadReader
from gateway.ticks import next_tick

log = structlog.get_logger()

_RESERVED_FILES = 64
_FEWEST = 8
_SWEEP = 0.25
"""Seconds between two steps of a sweep at most."""
_STEPS = 4
"""Steps of a sweep, each over a part of the connections: one may be ended a sweep late, a stalled reader a quarter of
its limit."""


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
        self._admission = Admission()
        self._entrance = entrance
        self._open: set[Any] = set()
        self._sweeping = False
        self._due: list[ClientConnection] = []  # of the present sweep
        self._step = 0  # how many of them each step takes
        # One timer for all connections, instead of one or two for each request. A limit is kept to a quarter of itself,
        # or to a second.
        self._interval = min(_SWEEP, min(limits.header_timeout, limits.write_stall) / 4 / _STEPS)

    def __call__(self, **arguments: Any) -> ClientConnection:
        """Make the protocol of a new connection."""
        made = ClientConnection(
            self._limits, self._on_refused, self._heads, self._admission, self._entrance, **arguments
        )
        # uvicorn's set, to which a connection adds itself when it is made, and which it leaves when it is lost.
        self._open = made.connections
        if not self._sweeping:
            self._sweeping = True
            self._sweep_later(made.loop)
        return made

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if not self._due:
            self._due = [*self._open]
            self._step = ceil(len(self._due) / _STEPS)
        step, self._due = self._due[: self._step], self._due[self._step :]
        for connection in step:
            if connection not in self._open:  # lost since the sweep began
                continue
            try:
                connection.end_if_late(now)
            except Exception as error:  # a bug at one connection: the limits of all others stay in force
                log.error("connection.not_swept", error=repr(error))
                connection.transport.abort()
        # Without connections the loop may rest.
        self._sweeping = bool(self._open)
        if self._sweeping:
            self._sweep_later(loop)

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_at(next_tick(loop.time(), self._interval), self._sweep, loop)
