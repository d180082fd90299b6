"""Waiting for a connection, or for a turn: requests in fair order, each until its own deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from adapters.base import Outbound
from backends.fairness import FairQueue, Place
from backends.transport.limits import TransportLimits
from schemas.errors import BackendTimeout, Fault, GatewayError, Overloaded

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Requests that wait.

    Args:
        limits: how long the line may be, and each may wait.
        take_back: called with what was given to a request that was cancelled in the same turn of the event loop.
    """

    def __init__(self, limits: TransportLimits, take_back: Callable[[T], object]) -> None:
        self._limits = limits
        self._take_back = take_back
        # Futures that timed out or were cancelled stay queued until their `wait` runs again.
        self._queue: FairQueue[asyncio.Future[T]] = FairQueue(short_first=limits.short_first)

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, flow: str, tokens: int) -> Place[asyncio.Future[T]]:
        """Queue a request; `wait` must follow."""
        return self._queue.put(asyncio.get_running_loop().create_future(), flow, tokens)

    async def wait(self, place: Place[asyncio.Future[T]], deadline: float | None) -> T:
        """Wait for one's turn.

        Raises:
            schemas.errors.GatewayError: it has not come by `deadline` (of the event loop's clock), or it came with one.
        """
        loop, waiter = asyncio.get_running_loop(), place.item
        # A timer on the future instead of `asyncio.timeout`: the future then ends in one way only, by whoever comes
        # first.
        refused_at = loop.time() + self._limits.queue_timeout
        if deadline is None or refused_at < deadline:
            timer = loop.call_at(refused_at, _fail, waiter, Overloaded("The backend's queue is slow.", retry_after=1.0))
        else:
            late = BackendTimeout("The backend has no free connection.", fault=Fault.TIMEOUT)
            timer = loop.call_at(deadline, _fail, waiter, late)
        try:
            return await waiter
        except asyncio.CancelledError:
            # It may have been served in the same turn of the loop as the cancellation.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._take_back(waiter.result())
            raise
        finally:
            timer.cancel()
            self._queue.drop(place)

    def serve(self, given: T) -> bool:
        """Give the first in the line what it waits for; False if nobody waits."""
        if not self._queue:
            return False
        waiter = self._next()
        if waiter is not None:
            waiter.set_result(given)
        return waiter is not None

    def fail(self, error: GatewayError) -> bool:
        """Report an error to the first in the line; False if nobody waits."""
        waiter = self._next()
        if waiter is not None:
            waiter.set_exception(error)
        return waiter is not None

    def _next(self) -> asyncio.Future[T] | None:
        while self._queue:
            place = self._queue.first
            if not place.item.done():
                return self._queue.take(place)
            self._queue.drop(place)
        return None


def _fail(waiter: asyncio.Future[T], error: GatewayError) -> None:
    if not waiter.done():
        waiter.set_exception(error)


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
