"""A deadline that moves with every event of a stream: one timer that is moved when it fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """A point in time of the event loop's clock.

    Args:
        loop: the event loop.
        passed: called when it has come; whether anybody still waits for it is for that to know.

    Attributes:
        at: the point in time; None: there is none. It may be set to a later one.
    """

    __slots__ = ("_loop", "_passed", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._timer: asyncio.TimerHandle | None = None
        self.at: float | None = None

    def set(self, at: float | None) -> None:
        """Move it."""
        self.at = at
        # A later deadline needs no work here: `_fire` finds it when the armed timer fires.
        if at is not None and (self._timer is None or at < self._timer.when()):
            self.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        """Call nothing until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self.at is not None and self._loop.time() < self.at:
            self.set(self.at)
        elif self.at is not None:
            self._passed()
