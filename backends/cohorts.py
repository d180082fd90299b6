"""Cohort scheduling: what the requests of one turn of the event loop have to do is done step by step, for all together.

Code that runs several times in a row takes a third of the time that it takes between other code, as the processor still
has it in its caches. So a request is a generator of steps, and the requests that begin in a turn take each step one
after another; their answers likewise. Nothing else runs in between: all steps are taken in one callback.

Source: Larus and Parkes, "Using Cohort Scheduling to Enhance Server Performance", USENIX Annual Technical Conference,
2002.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from types import CodeType
from weakref import WeakKeyDictionary

from backends.transport.outbox import outboxes_of

Steps = Generator[None, None, None]
"""What is to be done: each `yield` ends a step."""
FEW = 4
"""Where fewer join in a turn, those of the next turn take their steps at once: so few gain nothing together."""
MOST = 32
"""Members of a cohort at most: with hundreds, the first answer waits for the last, and their data fills the caches."""
_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Cohorts] = WeakKeyDictionary()


def cohorts_of(loop: asyncio.AbstractEventLoop) -> Cohorts:
    """The cohorts of an event loop."""
    if (found := _OF_LOOPS.get(loop)) is None:
        found = _OF_LOOPS[loop] = Cohorts(loop)
    return found


def take(many: list[Steps]) -> None:
    """Take all steps; those that run the same code together. One that fails is logged, and the others go on."""
    if len(many) == 1:
        _take(many)
        return
    alike: dict[CodeType, list[Steps]] = {}
    for steps in many:
        alike.setdefault(steps.gi_code, []).append(steps)  # type: ignore[attr-defined]  # of all generators
    for found in alike.values():
        for first in range(0, len(found), MOST):
            _take(found[first : first + MOST])


def _take(cohort: list[Steps]) -> None:
    while cohort:
        left: list[Steps] = []
        for steps in cohort:
            try:
                for _ in steps:  # one step, or none if that was the last one
                    left.append(steps)
                    break
            except Exception as error:
                _report(error)
        cohort = left


def _report(error: Exception) -> None:
    """Have a failed step logged: it is no fault of the code that took it."""
    context = {"message": "a step of a request failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class Cohorts:
    """The cohorts of one event loop: those who join in the same turn and run the same code.

    Args:
        loop: the event loop.
    """

    __slots__ = ("_at_once", "_before", "_loop", "_outboxes", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outboxes = outboxes_of(loop)
        self._waiting: list[Steps] = []
        self._at_once = 0  # how many have taken their steps at once in the present turn, or alone in an earlier one
        self._before = 0  # how many have joined in the last turn that is known

    def join(self, steps: Steps) -> None:
        """Take steps with those of the others that join in this turn, or at once where few do.

        Steps wait until the turn ends, when what they write would be sent. Whatever happens to their request until then
        is for the first step to find out.
        """
        if self._before < FEW:
            self._at_once += 1
            if self._at_once == 2:  # a callback for a single one would only delay it
                self._loop.call_soon(self._count)
            try:
                deque(steps, 0)
            except Exception as error:
                _report(error)
            return
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append(steps)

    def _count(self) -> None:
        self._before, self._at_once = self._at_once, 0

    def _run(self) -> None:
        """Take all steps of those that wait, and send what they have written."""
        waiting, self._waiting = self._waiting, []
        self._before = len(waiting)
        take(waiting)
        self._outboxes.send()
