"""One worker's figures of one experiment, in a file of doubles that all workers may read.

A file has one writer and a layout that follows from the experiment alone; whoever wants whole figures adds the files
up. No message, no lock, nothing to lose when a worker dies; its size never changes.
"""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path

import numpy as np

from gateway.assignment import BUCKETS
from gateway.sequential import Array


class Tally:
    """Counts by arm: `sums` by metric and bucket, `totals` by name.

    Args:
        arms: how many.
        metrics: how many.
        totals: how many plain counts an arm has.
        folder: where all workers' files of this experiment are; None: in memory, for a worker alone.
        worker: the file's name, this worker's own.
    """

    def __init__(self, arms: int, metrics: int, totals: int, folder: Path | None = None, worker: str = "0") -> None:
        self._shape = (arms, metrics, 2, BUCKETS)
        self._arm = metrics * 2 * BUCKETS
        self._totals = arms * self._arm
        self._width = totals
        self._size = 8 * (self._totals + arms * totals)
        self._folder = folder
        self._data = memoryview(self._map(worker)).cast("d")

    def add(self, arm: int, metric: int, bucket: int, value: float) -> None:
        """One more request's value."""
        at = arm * self._arm + metric * 2 * BUCKETS + bucket
        self._data[at] += 1.0
        self._data[at + BUCKETS] += value

    def count(self, arm: int, total: int) -> None:
        """One more of a plain count."""
        self._data[self._totals + arm * self._width + total] += 1.0

    def read(self) -> tuple[Array, Array]:
        """All workers' figures: [arms, metrics, (counts, sums), buckets] and [arms, totals]."""
        try:
            data = np.array(self._data) if self._folder is None else self._of_all(self._folder)
        except FileNotFoundError:  # another worker closed it
            data = np.array(self._data)
        return data[: self._totals].reshape(self._shape), data[self._totals :].reshape(self._shape[0], self._width)

    def close(self) -> None:
        """Remove all workers' files; what is mapped may still be added to."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # another worker may be at it too

    def _of_all(self, folder: Path) -> Array:
        return sum((np.fromfile(path) for path in folder.iterdir()), np.zeros(len(self._data)))

    def _map(self, worker: str) -> mmap.mmap:
        if self._folder is None:
            return mmap.mmap(-1, self._size)
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder.with_name(f"{self._folder.name}.{worker}")
        with new.open("w+b") as file:
            file.truncate(self._size)
            mapped = mmap.mmap(file.fileno(), self._size)
        new.rename(self._folder / worker)  # readers see it only once it has its whole size
        return mapped
