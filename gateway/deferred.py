"""Work for which nobody waits: what requests that ended, or were just sent, leave to do.

It is done for several together, step by step (`backends.cohorts`), when what was written has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.cohorts import Steps, take


class DeferredSteps:
    """Deferred steps, which are taken together. A process that is killed loses those that wait.

    Args:
        delay: seconds; 0: at the end of the event loop's turn.
        before, after: called before the first of them and after the last.
    """

    def __init__(
        self, delay: float = 0.0, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> None:
        self._delay = delay
        self._before = before
        self._after = after
        self._left: list[Steps] = []

    def add(self, steps: Steps, *, at_once: bool = False) -> None:
        """Take steps later, or at once. If one fails, that is logged."""
        if at_once:
            take([steps])
            return
        if not self._left:
            loop = asyncio.get_running_loop()
            if self._delay:
                loop.call_later(self._delay, self.make)
            else:
                loop.call_soon(self.make)
        self._left.append(steps)

    def make(self) -> None:
        """Take all steps that wait."""
        left, self._left = self._left, []
        if self._before is not None:
            _call(self._before)
        take(left)
        if self._after is not None:
            _call(self._after)


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception as error:  # what is to follow does not depend on it
        context = {"message": "work that was left for later failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
