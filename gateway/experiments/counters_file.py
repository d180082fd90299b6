"""One worker's figures of one experiment, in a file of doubles that all workers may read.

A file has one writer and a layout that follows from the experiment alone; whoever wants whole figures adds the files
up. No message, no lock, nothing to lose when a worker dies: the one that takes its place goes on with its file. A
file's size never changes.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np

from gateway.experiments.confidence import Array
from gateway.routing.assignment import BUCKETS


class Tally:
    """Counts by arm: `sums` by metric and bucket, `totals` by name.

    Args:
        arms: how many.
        metrics: how many.
        totals: how many plain counts an arm has.
        path: what the names of all workers' files of this experiment begin with; None: in memory, for a worker alone.
        worker: what this worker's ends with; one worker's at a time.
    """

    def __init__(self, arms: int, metrics: int, totals: int, path: Path | None = None, worker: str = "0") -> None:
        self._shape = (arms, metrics, 2, BUCKETS)
        self._arm = metrics * 2 * BUCKETS
        self._totals = arms * self._arm
        self._width = totals
        self._size = 8 * (self._totals + arms * totals)
        self._path = path
        self._data = memoryview(self._map(worker)).cast("d")

    def add(self, arm: int, metric: int, bucket: int, value: float) -> None:
        """One more request's value."""
        at = arm * self._arm + metric * 2 * BUCKETS + bucket
        self._data[at] += 1.0
        self._data[at + BUCKETS] += value

    def correct(self, arm: int, metric: int, bucket: int, change: float) -> None:
        """A value that was added is another one by now."""
        self._data[arm * self._arm + metric * 2 * BUCKETS + BUCKETS + bucket] += change

    def count(self, arm: int, total: int) -> None:
        """One more of a plain count."""
        self._data[self._totals + arm * self._width + total] += 1.0

    def read(self) -> tuple[Array, Array]:
        """All workers' figures: [arms, metrics, (counts, sums), buckets] and [arms, totals]."""
        data = np.array(self._data) if self._path is None else self._of_all()
        return data[: self._totals].reshape(self._shape), data[self._totals :].reshape(self._shape[0], self._width)

    def close(self) -> None:
        """Remove all workers' files; what is mapped may still be added to. A worker that lags behind may make one anew,
        and then removes it itself.
        """
        for file in self._files():
            file.unlink(missing_ok=True)

    def _of_all(self) -> Array:
        whole = np.zeros(len(self._data))
        for file in self._files():
            with suppress(FileNotFoundError):  # another worker closed it just now
                whole += np.fromfile(file)
        return whole

    def _files(self) -> list[Path]:
        return [] if self._path is None else list(self._path.parent.glob(f"{self._path.name}.*"))

    def _map(self, worker: str) -> mmap.mmap:
        if self._path is None:
            return mmap.mmap(-1, self._size)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        mine = self._path.with_name(f"{self._path.name}.{worker}")
        if not mine.exists():
            new = self._path.with_name(f"new.{worker}")
            with new.open("wb") as file:
                file.truncate(self._size)
            new.rename(mine)  # readers see it only once it has its whole size
        with mine.open("r+b") as file:
            return mmap.mmap(file.fileno(), self._size)
