"""Shares of concurrent requests: under load no API key takes the place of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from schemas.errors import RateLimited

_KEPT_FREE = 8
"""One of so many places is kept free for keys that run nothing yet."""


class Shares:
    """Counts the running requests of each key.

    A key may use any free place while at most half are taken. From then on it may have as many as an equal share among
    the keys that run something.

    Args:
        places: concurrent requests of this worker.
        owner: identifies the key in a request's headers.
        shared: whether there are several keys.
    """

    def __init__(self, places: int, owner: Callable[[Mapping[str, str]], bytes], *, shared: bool) -> None:
        self._places = places
        self._owner = owner
        self._shared = shared
        self._running: Counter[bytes] = Counter()
        self._total = 0

    def enter(self, headers: Mapping[str, str]) -> bytes | None:
        """Count a request; what it returns goes to `leave`.

        Raises:
            schemas.errors.RateLimited: its key has its share already.
        """
        if not self._shared:
            return None
        owner = self._owner(headers)
        running = self._running[owner]
        if 2 * self._total >= self._places and running >= self._share(running):
            raise RateLimited("The server is busy, and this key has its share of it.", retry_after=1.0)
        self._running[owner] += 1
        self._total += 1
        return owner

    def leave(self, owner: bytes) -> None:
        """Count the end of a request."""
        self._total -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def _share(self, running: int) -> int:
        keys = len(self._running) + (running == 0)
        return max(1, self._places - max(1, self._places // _KEPT_FREE) if keys == 1 else self._places // keys)
