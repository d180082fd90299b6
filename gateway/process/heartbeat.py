"""The heartbeat of a worker: one byte in a pipe every half second, written by its event loop.

A worker whose loop does not turn any more (a deadlock, a stopped process) still holds its connections and the share of
new ones that the kernel gives it. The supervisor replaces it. A slow loop beats late, but it beats.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from gateway.ticks import next_tick

INTERVAL = 0.5
"""Seconds between two beats."""
_STARTING_FACTOR = 10
"""How many times longer a worker may be silent before its first beat: it imports and builds its application."""
_LONGEST_STEP = 1.0
"""Seconds that pass at most between two looks, as far as silence is concerned: a pause of the supervisor, or of the
whole machine, is not the worker's."""


class Heartbeat:
    """The supervisor's side: whether a process is silent for too long.

    Args:
        hung_after: seconds of silence.
    """

    def __init__(self, hung_after: float) -> None:
        self._hung_after = hung_after
        self._reader: int | None = None
        self._silence = 0.0
        self._looked_at = 0.0
        self._has_beaten = False

    def pipe(self, now: float) -> int:
        """Begin anew, for a process that is about to start. Return the end of a pipe for it; the caller closes it."""
        self.close()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        self._silence, self._looked_at, self._has_beaten = 0.0, now, False
        return writer

    def is_hung(self, now: float) -> bool:
        """Whether the process has been silent for too long; to be asked often. `now` is of `time.monotonic`."""
        step, self._looked_at = min(now - self._looked_at, _LONGEST_STEP), now
        self._silence += step
        if self._beats():
            self._silence, self._has_beaten = 0.0, True
        return self._silence > self._hung_after * (1 if self._has_beaten else _STARTING_FACTOR)

    def _beats(self) -> bool:
        if self._reader is None:
            return False
        with suppress(BlockingIOError):
            return bool(os.read(self._reader, 4096))
        return False

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None


def beat(loop: asyncio.AbstractEventLoop, writer: int) -> None:
    """Write a beat now and every `INTERVAL` seconds, for as long as the loop turns."""
    # Full: the supervisor does not look. Broken: it is gone, which standard input tells.
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(writer, b".")
    loop.call_at(next_tick(loop.time(), INTERVAL), beat, loop, writer)
