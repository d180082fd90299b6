"""The numbers of one worker's time series, in files that all workers read and add up.

Strategy: a worker has two files. In `SLOT.cells`, which is mapped into memory, each series has a fixed run of doubles:
an increment is a store to memory, without a lock. In `SLOT.index` each series has a line of JSON, in the order of its
doubles: `[name, number of doubles, labels]`. A series is written to the index before its first increment. Whoever is
asked for `/metrics` reads both files of every worker.

The files of a worker that died stay, so that no sum ever goes down, and the worker that takes its slot continues them.
A living worker holds a lock on its index, which the kernel drops when the worker dies, however it does: gauges of dead
workers are left out. Without a folder the numbers are in memory.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from gateway.storage.mapped_file import map_file

log = structlog.get_logger()

Labels = tuple[str, ...]  # the values; a metric's label names are in its instrument
Cells: TypeAlias = "memoryview[float]"
"""Doubles in mapped memory."""
Totals = dict[str, dict[Labels, list[float]]]
"""By the name of a metric and the values of its labels: the doubles of a series, added up over workers."""

_CELLS = 1 << 19
"""Doubles in a file (4 MiB): room for about 2,500 served entities."""


class SeriesFile:
    """The series of this worker for writing, and those of all workers for reading.

    Args:
        folder: shared by all workers; None: memory of this process alone.
        slot: the name of this worker's files; only one process at a time may use it.

    Raises:
        OSError: the files cannot be made.
    """

    def __init__(self, folder: Path | None = None, slot: str = "0") -> None:
        self._folder = folder
        cells = folder / f"{slot}.cells" if folder is not None else None
        # A memoryview of doubles: an increment needs no `struct` call, and an aligned 8-byte store is not torn on
        # 64-bit machines.
        self._cells = memoryview(map_file(cells, 8 * _CELLS)).cast("d")
        self._used = 0
        self._own: dict[tuple[str, Labels], Cells] = {}
        self._index: int | None = None
        if folder is not None:
            # O_APPEND: each line is one write at the file's end, also after `_continue` has cut an incomplete one off.
            self._index = os.open(folder / f"{slot}.index", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            # Held until the process ends or closes the file: `_is_locked` sees it from any process, this one included.
            fcntl.flock(self._index, fcntl.LOCK_EX)
            self._continue(folder / f"{slot}.index")

    def series(self, name: str, labels: Labels, width: int) -> Cells:
        """Return the doubles of one of this worker's series; they begin with zeros."""
        if (found := self._own.get((name, labels))) is not None:
            return found
        # A request that ends after `close` may still count; there is no index left to write its series to.
        closed = self._folder is not None and self._index is None
        if closed or self._used + width > _CELLS:
            log.error("series.not_added", metric=name, labels=labels, closed=closed)
            found = memoryview(bytearray(8 * width)).cast("d")  # counted, but never shown
        else:
            if self._index is not None:
                # Before the first increment: doubles without a line in the index would be given to another series
                # later.
                os.write(self._index, msgspec.json.encode((name, width, labels)) + b"\n")
            found = self._take(width)
        self._own[name, labels] = found
        return found

    def own(self, name: str) -> list[Cells]:
        """Return the doubles of all of this worker's series of a metric."""
        return [cells for (of, _), cells in self._own.items() if of == name]

    def read(self, *, living: bool = False) -> Totals:
        """Return the sums over all workers, or over the `living` ones only, as for gauges."""
        totals: Totals = {}
        if self._folder is None:
            for (name, labels), cells in list(self._own.items()):  # another thread may read
                totals.setdefault(name, {})[labels] = list(cells)
            return totals
        # Each file has its own series in its own order: they are matched by name and labels.
        for index in sorted(self._folder.glob("*.index")):
            if not living or _is_locked(index):
                _add(totals, index)
        return totals

    def close(self) -> None:
        """Count as dead from now on. Numbers may still be added to series that exist."""
        if self._index is not None:
            os.close(self._index)
            self._index = None

    def _continue(self, index: Path) -> None:
        """Take over what an earlier worker in this slot has counted."""
        data = index.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(index, whole)  # it was killed while it wrote a line
        # In the order of the index, which is the order of the doubles: each series gets its old place.
        for name, width, labels in _entries(data):
            self._own[name, labels] = self._take(width)

    def _take(self, width: int) -> Cells:
        taken = self._cells[self._used : self._used + width]
        self._used += width
        return taken


def _entries(index: bytes) -> list[tuple[str, int, Labels]]:
    lines = index[: index.rfind(b"\n") + 1].splitlines()  # the last line may be in the middle of its write
    return [msgspec.json.decode(line, type=tuple[str, int, Labels]) for line in lines]


def _add(totals: Totals, index: Path) -> None:
    # The index before the doubles: every series that it lists is in the other file, whose size never changes. The
    # worker may count meanwhile: a sum is then newer by an increment than its neighbour.
    entries = _entries(index.read_bytes())
    size = 8 * sum(width for _, width, _ in entries)
    with index.with_suffix(".cells").open("rb") as file:
        cells = memoryview(file.read(size)).cast("d")
    at = 0
    for name, width, labels in entries:
        values = cells[at : at + width]
        series = totals.setdefault(name, {})
        old = series.get(labels)
        series[labels] = list(values) if old is None else [a + b for a, b in zip(old, values, strict=True)]
        at += width


def _is_locked(path: Path) -> bool:
    """Return whether the worker that writes the file lives."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # A second open file: `flock` locks exclude each other between open files, even within one process. Shared: of
        # two that ask at the same time, neither takes the other for the worker.
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(descriptor)
