"""Counters of an experiment: one file of doubles per worker, which any worker reads and adds up.

Strategy: each file has one writer, and its layout follows from what is counted alone, so that counting needs no message
and no lock, and the worker that replaces another one continues its file. A file's size never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gateway.experiments.statistics.confidence import Array
from gateway.experiments.statistics.histogram import BINS
from gateway.routing.assignment import BUCKETS
from gateway.storage.mapped_file import map_file

LAYOUT_VERSION = 2
"""Changes with the order of the doubles in a file."""


class Layout(NamedTuple):
    """What is counted: of each arm, counts and sums in rows, histograms, and plain counts (totals)."""

    arms: int
    rows: int
    histograms: int = 0
    totals: int = 0

    @property
    def size(self) -> int:
        """The number of doubles in a file."""
        return self.arms * (self.rows * 2 * BUCKETS + self.histograms * BINS + self.totals)


class Sums(NamedTuple):
    """Counters added up over workers.

    Attributes:
        rows: [arms, rows, (count, sum), buckets].
        histograms: [arms, histograms, bins].
        totals: [arms, totals].
    """

    rows: Array
    histograms: Array
    totals: Array


class CountersFile:
    """One worker's counters for writing, and those of all workers for reading.

    Attributes:
        data: all doubles of this worker's file.
        record: the counters of an arm and a bucket, by their `offset`: count and sum of each row.
        replace: writes them back, changed, with no `await` in between: the offset, then the numbers. For many rows at
            once, the two cost half of `add`.

    Args:
        layout: what is counted.
        path: the common stem of all workers' files; None: memory of this process alone.
        slot: the suffix of this worker's file; only one process at a time may use it.
    """

    def __init__(self, layout: Layout, path: Path | None = None, slot: int = 0) -> None:
        # [arms, buckets, rows, (count, sum)], then [arms, histograms, bins], then [arms, totals]. Rows are innermost:
        # what a request changes is a few neighboring lines of the processor's cache, read and written in one call.
        self._layout = layout
        self._width = 2 * layout.rows
        self._totals = layout.totals
        self._bins_at = layout.arms * BUCKETS * self._width
        self._totals_at = self._bins_at + layout.arms * layout.histograms * BINS
        self._path = path
        own = path.with_name(f"{path.name}.{slot}") if path is not None else None
        self._mapped = map_file(own, 8 * layout.size)
        self.data = memoryview(self._mapped).cast("d")
        record = struct.Struct(f"{self._width}d")
        self.record: Callable[[int], tuple[float, ...]] = partial(record.unpack_from, self._mapped)
        self.replace: Callable[..., None] = partial(record.pack_into, self._mapped)

    def add(self, arm: int, bucket: int, values: Iterable[tuple[int, float]]) -> None:
        """Count one request: in each of these rows, with its value there."""
        # Two stores without a lock: a reader in between sees a count without its value, one request's worth of error
        # that the next report does not have.
        data, base = self.data, (arm * BUCKETS + bucket) * self._width
        for row, value in values:
            at = base + 2 * row
            data[at] += 1.0
            data[at + 1] += value

    def count_row(self, arm: int, bucket: int, row: int) -> None:
        """Count one request in a row that has no values."""
        self.data[(arm * BUCKETS + bucket) * self._width + 2 * row] += 1.0

    def offset(self, arm: int, bucket: int) -> int:
        """Where the record of an arm and a bucket begins, for `record` and `replace`."""
        return 8 * (arm * BUCKETS + bucket) * self._width

    def histograms(self, arm: int) -> int:
        """Where the histograms of an arm begin in `data`, one after the other."""
        return self._bins_at + arm * self._layout.histograms * BINS

    def correct(self, arm: int, bucket: int, row: int, change: float) -> None:
        """Add `change` to the sum without counting a request: the value of a counted request has changed."""
        self.data[(arm * BUCKETS + bucket) * self._width + 2 * row + 1] += change

    def count(self, arm: int, total: int) -> None:
        """Add one to a plain count."""
        self.data[self._totals_at + arm * self._totals + total] += 1.0  # exact up to 2**53

    def own(self) -> Sums:
        """Return what is in this worker's file."""
        return _split(self._layout, np.array(self.data))  # a copy: this worker goes on counting

    def read(self) -> Sums:
        """Return the sums over all workers."""
        return self.own() if self._path is None else read(self._layout, self._path)


def read(layout: Layout, path: Path) -> Sums:
    """Return the sums over the files of all workers with the stem `path`; zeros if there is none."""
    total = np.zeros(layout.size)
    for file in path.parent.glob(f"{path.name}.*"):
        # A file has its whole size from the moment that it has its name (`map_file`), so shapes agree.
        total += np.fromfile(file)
    return _split(layout, total)


def zeros(layout: Layout) -> Sums:
    """Return the sums of nothing."""
    arms, rows, histograms, totals = layout
    return Sums(np.zeros((arms, rows, 2, BUCKETS)), np.zeros((arms, histograms, BINS)), np.zeros((arms, totals)))


def _split(layout: Layout, data: Array) -> Sums:
    """Return the parts of a file's doubles."""
    arms, rows, histograms, totals = layout
    bins_at = arms * rows * 2 * BUCKETS
    totals_at = bins_at + arms * histograms * BINS
    return Sums(
        # Buckets innermost: sums over them are contiguous.
        np.ascontiguousarray(np.moveaxis(data[:bins_at].reshape(arms, BUCKETS, rows, 2), 1, 3)),
        data[bins_at:totals_at].reshape(arms, histograms, BINS),
        data[totals_at:].reshape(arms, totals),
    )
