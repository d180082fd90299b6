"""Work for which nobody waits yet: it is done at the end of the event loop's turn, when what was written has left.

What requests that ended, or were just sent, leave to do is done for all of a turn together, step by step
(`backends.cohorts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.cohorts import Steps, take


class AfterTurn:
    """The steps that the present turn has left. A process that is killed loses them.

    Args:
        before, after: called before the first one of a turn and after the last.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before = before
        self._after = after
        self._left: list[Steps] = []

    def add(self, steps: Steps, *, at_once: bool = False) -> None:
        """Take steps at the turn's end, or at once. If one fails, that is logged."""
        if at_once:
            take([steps])
            return
        if not self._left:
            asyncio.get_running_loop().call_soon(self.make)
        self._left.append(steps)

    def make(self) -> None:
        """Take the steps."""
        left, self._left = self._left, []
        _call(self._before)
        take(left)
        _call(self._after)


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception as error:  # what is to follow does not depend on it
        context = {"message": "work at the end of a turn failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
