"""Counts in windows of time, by name, exact over all workers of a machine.

Strategy: a hash table in a file that all workers map into memory. A row has 60 counts: of the seconds of a minute, of
the minutes of an hour, or of one day or month in its first count. A worker changes rows only while it holds the file's
lock, which the kernel frees if the worker is killed: no check and no increment of another one comes between. A row
whose window has passed is free for another name.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from math import ceil, inf
from pathlib import Path

import msgspec

from gateway.storage.mapped_file import map_file

COUNTS = 60
"""The most counts of a row."""
_UNTIL, _TOTAL, _FIRST = 2, 3, 4
"""Places among a row's 64 numbers of 8 bytes. The first two are the name."""
_ROW = _FIRST + COUNTS
_PROBES = 16
"""Rows in which a name may be."""


Name = tuple[int, int]
"""Names a row: 30 and 60 bits of a hash, which Python computes with faster than with 64."""


class Span(msgspec.Struct, frozen=True):
    """A window at one moment.

    Attributes:
        counts: how many counts it has.
        tick: the number of its present count since the epoch; it is in the place `tick % counts`.
        width: seconds of a count.
        until: Unix time at which what is counted now is over.
        reset: seconds until then, rounded up.
    """

    counts: int
    tick: int
    width: float
    until: float
    reset: int = 0


RUNNING = Span(COUNTS, 0, inf, inf)
"""Of counts that never end; each has one writer."""


def spans(now: float) -> dict[str, Span]:
    """The windows of `gateway.config.Window` at a Unix time."""
    second, minute, day = int(now), int(now // 60), int(now // 86400)
    date = datetime.fromtimestamp(now, UTC)
    year, month = divmod(date.year * 12 + date.month, 12)
    month_end = datetime(year, month + 1, 1, tzinfo=UTC).timestamp()
    ends = {
        "minute": (COUNTS, second, 1.0, second + 60.0),
        "hour": (COUNTS, minute, 60.0, (minute + 60) * 60.0),
        "day": (1, day, 86400.0, (day + 1) * 86400.0),
        "month": (1, date.year * 12 + date.month, inf, month_end),
    }
    return {window: Span(*end, reset=ceil(end[3] - now)) for window, end in ends.items()}


class CounterTable:
    """The table. `take` to `free` are to be called while its lock is held: in a `with` block, or between `lock` and
    `unlock`, which cost less.

    Attributes:
        lock, unlock: take the lock of all rows, and give it back.
        memory: of the rows.

    Args:
        path: the file; None: memory of this process alone.
        rows: how many names can be counted at the same time. If all rows where a name may be are taken, the one whose
            window ends first is lost.
    """

    def __init__(self, path: Path | None, rows: int = 1 << 14) -> None:
        self._rows = rows
        self._file: int | None = None
        self.lock: Callable[[], None] = _nothing
        self.unlock: Callable[[], None] = _nothing
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            self.lock = partial(fcntl.flock, self._file, fcntl.LOCK_EX)
            self.unlock = partial(fcntl.flock, self._file, fcntl.LOCK_UN)
        with self:  # only one process creates the file
            self.memory: mmap.mmap = map_file(path, rows * _ROW * 8)
        view = memoryview(self.memory)
        self._numbers, self._names = view.cast("d"), view.cast("Q")

    def __enter__(self) -> None:
        """Take the lock of all rows."""
        self.lock()

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        self.unlock()

    def take(self, name: Name, span: Span, most: float, amount: float) -> float:
        """Add to a name's present count, unless its total would pass `most` or has reached it.

        Returns:
            What is left of `most`; below 0 if nothing was added.
        """
        numbers, row = self._numbers, self.row(name, span)
        total = self.total(row, span)
        left = most - total - amount
        if left < 0 or total >= most:
            return -1.0
        if amount:
            numbers[row + _FIRST + span.tick % span.counts] += amount
            numbers[row + _TOTAL] = total + amount
        return left

    def correct(self, name: Name, span: Span, tick: int, change: float) -> None:
        """Change what was added to a name's count at a tick."""
        numbers, row = self._numbers, self.row(name, span)
        self.total(row, span)
        if span.tick - tick >= span.counts:
            # The first amount is over. What is more than that has just been used; a refund would be for nothing.
            if change < 0:
                return
            tick = span.tick
        numbers[row + _FIRST + tick % span.counts] += change
        numbers[row + _TOTAL] += change

    def places(self, name: Name, span: Span) -> tuple[int, int]:
        """Where in memory (bytes) a name's row usually is, and its present count."""
        row = name[0] % self._rows * _ROW
        return 8 * row, 8 * (row + _FIRST + span.tick % span.counts)

    def row(self, name: Name, span: Span) -> int:
        """The row of a name, which is made if need be."""
        names, numbers = self._names, self._numbers
        low, high = name
        row = low % self._rows * _ROW
        if names[row] == low and names[row + 1] == high:
            return row
        first, first_until = -1, inf
        for probe in range(_PROBES):
            row = (low + probe) % self._rows * _ROW
            if names[row] == low and names[row + 1] == high:
                return row
            if first < 0 or numbers[row + _UNTIL] < first_until:
                first, first_until = row, numbers[row + _UNTIL]
        names[first], names[first + 1] = low, high
        self._clear(first, span)
        return first

    def total(self, row: int, span: Span) -> float:
        """The sum of a row's counts in the window."""
        numbers = self._numbers
        if (before := numbers[row + _UNTIL]) != span.until:
            passed = (span.until - before) / span.width if span.counts > 1 else inf
            if passed >= span.counts:
                self._clear(row, span)
            elif passed <= -span.counts:
                # The clock was set back by more than the window. Nothing would slide out until it is there again, which
                # may take a year; so all of it belongs to the present count, and is over after one window.
                counted = numbers[row + _TOTAL]
                self._clear(row, span)
                numbers[row + _FIRST + span.tick % span.counts] = numbers[row + _TOTAL] = counted
            elif passed > 0:  # else the clock was set back a little: what is counted belongs to the present count
                for tick in range(span.tick - int(passed) + 1, span.tick + 1):
                    numbers[row + _FIRST + tick % span.counts] = 0.0
                numbers[row + _UNTIL] = span.until
                # Summed anew: a difference of costs would leave a rest.
                numbers[row + _TOTAL] = sum(numbers[row + _FIRST : row + _FIRST + span.counts])
        return numbers[row + _TOTAL]

    def add(self, row: int, tick: int, span: Span, amount: float) -> None:
        """Add to the count of a tick in the window."""
        self._numbers[row + _FIRST + tick % span.counts] += amount
        self._numbers[row + _TOTAL] += amount

    def seconds_until_free(self, row: int, span: Span, amount: float, now: float) -> float:
        """Seconds until so much of what is counted is over."""
        if span.counts == 1:
            return span.until - now
        for place in range(1, span.counts + 1):
            amount -= self._numbers[row + _FIRST + (span.tick + place) % span.counts]
            if amount <= 0:
                return (span.tick + place) * span.width - now
        return span.until - now

    def free(self, row: int) -> None:
        """Leave a row to other names."""
        self._numbers[row + _UNTIL] = 0.0

    def clear_column(self, column: int) -> None:
        """Set one count of every row to 0: those of a writer that has ended."""
        numbers = self._numbers
        with self:
            for row in range(0, self._rows * _ROW, _ROW):
                if gone := numbers[row + _FIRST + column]:
                    numbers[row + _FIRST + column] = 0.0
                    numbers[row + _TOTAL] -= gone

    def close(self) -> None:
        """Unmap the file."""
        self._numbers.release()
        self._names.release()
        self.memory.close()
        if self._file is not None:
            os.close(self._file)

    def _clear(self, row: int, span: Span) -> None:
        numbers = self._numbers
        numbers[row + _UNTIL], numbers[row + _TOTAL] = span.until, 0.0
        for place in range(row + _FIRST, row + _ROW):
            numbers[place] = 0.0


def _nothing() -> None:
    """The lock of a table that one process has for itself."""


def name_of(*parts: str) -> Name:
    """The name of a row: a hash of all parts."""
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=12).digest()
    return int.from_bytes(digest[:4], "little") >> 2, int.from_bytes(digest[4:], "little") >> 4
