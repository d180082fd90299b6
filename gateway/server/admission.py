"""How many requests begin in one turn of the event loop: the others wait for the next turns.

Hundreds of requests may be read in one turn. If all of them began in it, the first answer would be sent only after the
last request has begun. With a limit, each turn begins some requests and sends some answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_MOST = 32
_COUNTED = 8
"""Requests of earlier turns that may count as of the present one: so many that come one by one need no callback."""


class Admission:
    """Admits the requests of one event loop, in the order in which they come."""

    def __init__(self) -> None:
        self._admitted = 0  # in the present turn, and maybe a few in earlier ones
        self._waiting: deque[Callable[[], None]] = deque()

    def admit(self, begin: Callable[[], None]) -> bool:
        """Whether a request may begin in this turn; else `begin` is called in a later one."""
        if self._admitted >= _MOST:
            self._waiting.append(begin)
            return False
        # The first ones schedule no callback, which would cost a client with one connection more than it gains.
        if self._admitted == _COUNTED:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._admitted += 1
        return True

    def _next_turn(self) -> None:
        # Those that come in this turn are behind those that wait: they are admitted only if none is left.
        self._admitted = min(_MOST, len(self._waiting))
        if self._admitted:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._next_turn)
            for _ in range(self._admitted):
                loop.call_soon(self._waiting.popleft())
