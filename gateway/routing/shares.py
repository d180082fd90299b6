"""Shares of concurrent requests: under load no API key takes the place of the others."""

from __future__ import annotations

from schemas.errors import RateLimited

_KEPT_FREE = 8
"""One of so many places is kept free for keys that run nothing yet."""


class Shares:
    """Counts the running requests of each key.

    A key may use any free place while at most half are taken. From then on it may have as many as an equal share among
    the keys that run something.

    Args:
        places: concurrent requests of this worker.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._running: dict[str, int] = {}
        self._total = 0

    def enter(self, owner: str) -> None:
        """Count a request of a key.

        Raises:
            schemas.errors.RateLimited: the key has its share already.
        """
        running = self._running.get(owner, 0)
        if 2 * self._total >= self._places and running >= self._share(running):
            raise RateLimited("The server is busy, and this key has its share of it.", retry_after=1.0)
        self._running[owner] = running + 1
        self._total += 1

    def leave(self, owner: str) -> None:
        """Count the end of a request."""
        self._total -= 1
        if left := self._running[owner] - 1:
            self._running[owner] = left
        else:
            del self._running[owner]

    def _share(self, running: int) -> int:
        keys = len(self._running) + (running == 0)
        return max(1, self._places - max(1, self._places // _KEPT_FREE) if keys == 1 else self._places // keys)
