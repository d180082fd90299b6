"""Whether clients wait for any worker: each one that has a request touches a file, whose time all of them look at."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from gateway.service import Service

_QUIET = 0.5
"""Seconds without a request of a client after which there are none."""
_TICK = 0.2


class Clients:
    """The clients of all workers.

    Args:
        service: the worker's.
        file: shared by all workers.
    """

    def __init__(self, service: Service, file: Path) -> None:
        self._service = service
        self._file = file
        self._seen = service.begun
        self._until = 0.0

    async def watch(self) -> None:
        """Tell other workers of this one's clients, for as long as it runs."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file.touch(mode=0o600)
        while True:
            if self._here():
                os.utime(self._file)
            await asyncio.sleep(_TICK)

    @property
    def present(self) -> bool:
        """Whether a client waits for a worker, or has just done so."""
        if self._here():
            return True
        try:
            return time.time() - self._file.stat().st_mtime < _QUIET
        except OSError:
            return False

    def _here(self) -> bool:
        now, service = time.monotonic(), self._service
        # A request may have come and ended since the last look.
        if service.running or service.begun != self._seen:
            self._seen = service.begun
            self._until = now + _QUIET
        return now < self._until
