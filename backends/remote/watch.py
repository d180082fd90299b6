"""A look at a server every few seconds: how it comes up, and how a breaker that opened heals."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from adapters.base import Outbound
from backends.base import Health
from backends.remote.breaker import Breaker
from backends.transport import Transport
from schemas.errors import GatewayError

log = structlog.get_logger()

_PATIENCE = 2.0  # seconds that a look may take


class Watch:
    """Looks at one server.

    Args:
        name: the backend's, for the log.
        transport: the way there.
        path: of a GET that it answers quickly.
        breaker: is told what was seen.
    """

    def __init__(self, name: str, transport: Transport, path: str, breaker: Breaker) -> None:
        self._name = name
        self._transport = transport
        self._ask = Outbound(path, b"", "GET", ())
        self._breaker = breaker
        self._reached = False
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def health(self) -> Health:
        """What is never reached is loading: it may be on its way up. What was stays ready, if as the last resort."""
        if not self._reached:
            return Health("loading", self._trouble)
        return Health("ready", f"{self._breaker.failures} failures in a row" if self._breaker.open else "")

    async def start(self, interval: float) -> None:
        """Look once, then every `interval` seconds."""
        await self.look()
        self._task = asyncio.create_task(self._run(interval))

    async def aclose(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """It lives if it answers at all, whatever it says, unless with a failure of its own."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        try:
            response = await self._transport.exchange(self._ask, deadline)
            try:
                status = (await response.reply(deadline)).status
            finally:
                response.close()
        except GatewayError as error:
            self._trouble = error.message
            self._breaker.record_failure(error)
            return
        self._breaker.record_status(status)
        if not self._reached:
            self._reached = True
            log.info("backend.reached", backend=self._name, status=status)

    async def _run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.look()
