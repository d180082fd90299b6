"""The exchanges of a transport that has connections of its own kind: so many at a time, the others wait in line."""

from __future__ import annotations

from adapters.base import Outbound
from backends.transport.limits import TransportLimits
from backends.transport.waiting_line import WaitingLine
from schemas.errors import Overloaded


class Turns:
    """Counts exchanges and makes those above the bound wait.

    Args:
        limits: how many may wait, and how long.
        most: exchanges at a time.
    """

    def __init__(self, limits: TransportLimits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._running = 0
        self._waiting = WaitingLine[None](limits, lambda _: self.leave())

    async def enter(self, request: Outbound, deadline: float | None) -> None:
        """Wait until an exchange may begin; `leave` must follow.

        Raises:
            schemas.errors.GatewayError: the line is full or too slow, or the turn has not come by `deadline`.
        """
        if self._running < self._most:  # then nobody waits
            self._running += 1
        elif len(self._waiting) >= self._limits.waiting:
            raise Overloaded("The backend's queue is full.", retry_after=1.0)
        else:
            await self._waiting.wait(self._waiting.join(request.flow, request.tokens), deadline)

    def widen(self, most: int) -> None:
        """Run more exchanges at a time."""
        self._most = most
        while self._running < self._most and self._waiting.serve(None):
            self._running += 1

    def leave(self) -> None:
        """Pass the right to run on."""
        if not self._waiting.serve(None):
            self._running -= 1
