"""Periodic health checks of a server: they notice when it comes up, and close a breaker that opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from adapters.base import Outbound, Reply
from backends.base import Health
from backends.remote.diagnosis import Diagnosis
from backends.remote.resilience.breaker import Breaker
from backends.transport import Exchanger
from schemas.errors import GatewayError

log = structlog.get_logger()

# Shorter than the default interval, so that a silent server is found within one interval.
CHECK_TIMEOUT = 2.0  # seconds


class HealthCheck:
    """Sends GETs to one server and feeds its breaker with the results.

    Args:
        name: the backend's name, for the log.
        client: of the server.
        path: of the GET; the server answers it quickly.
        breaker: counts the results.
        diagnosis: explains failures, for the log.
        is_ready: whether an answer says that the server is ready, of servers whose status does not.
        reached: awaited with each reply, if given.
    """

    def __init__(
        self,
        name: str,
        client: Exchanger,
        path: str,
        breaker: Breaker,
        diagnosis: Diagnosis,
        *,
        is_ready: Callable[[Reply], bool] | None = None,
        reached: Callable[[Reply], Awaitable[None]] | None = None,
    ) -> None:
        self._name = name
        self._client = client
        self._request = Outbound(path, b"", "GET", ())
        self._breaker = breaker
        self._diagnosis = diagnosis
        self._is_ready = is_ready
        self._on_reply = reached
        self._logged: tuple[str, str] | None = None
        self._reached = False  # whether any reply ever came; never reset
        self._last_error = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def health(self) -> Health:
        """The state after the last check.

        A server that was never reached is loading: it may still be starting. One that was reached stays ready, since an
        open breaker only makes it the last choice.
        """
        if not self._reached:
            return Health("loading", self._last_error)
        return Health("ready", f"{self._breaker.failures} failures in a row" if self._breaker.open else "")

    async def start(self, interval: float) -> None:
        """Check now, and then every `interval` seconds until `aclose`."""
        await self.check()
        self._task = asyncio.create_task(self._run(interval))

    async def aclose(self) -> None:
        """Stop checking. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def check(self) -> None:
        """Check once. Any reply shows that the server works, except a 5xx other than 503."""
        deadline = asyncio.get_running_loop().time() + CHECK_TIMEOUT
        try:
            response = await self._client.exchange(self._request, deadline)
            try:
                # The body is read to its end, so that the connection can be reused.
                reply = await response.reply(deadline)
            finally:
                response.close()
        except GatewayError as error:
            self._last_error = error.message
            self._breaker.record_failure(error)
            self._log("backend.unreachable", self._diagnosis.of_error(error))
            return
        # This is how an open breaker closes without traffic: a good reply resets its count.
        self._breaker.record_status(reply.status)
        self._reached = True
        why = self._diagnosis.of_answer(response)
        if why is None and self._is_ready is not None and not self._is_ready(reply):
            why = "it says that it is not ready: a model may be loading, or may have failed to load"
        self._log("backend.reached" if why is None else "backend.refused", why or "", status=reply.status)
        if self._on_reply is not None:
            await self._on_reply(reply)

    def _log(self, event: str, why: str, **values: int) -> None:
        """Log a state when it changes, with its cause."""
        if self._logged != (event, why):
            self._logged = (event, why)
            write = log.info if event == "backend.reached" else log.warning
            write(event, backend=self._name, **values, **({"why": why} if why else {}))

    async def _run(self, interval: float) -> None:
        while True:
            # The interval counts from the end of a check, so checks of a slow server never overlap.
            await asyncio.sleep(interval)
            await self.check()
