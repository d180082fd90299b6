"""When a worker does what it does again and again: at the same times, so that it wakes up once for all of it."""

from __future__ import annotations

from math import floor


def next_tick(now: float, interval: float) -> float:
    """The next multiple of an interval on a clock; both in seconds.

    Each time an idle process wakes up, what it needs is in no cache: that costs more than what it then does.
    """
    return (floor(now / interval) + 1) * interval
