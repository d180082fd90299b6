"""The counters of one experiment: one file of doubles per worker, which any worker reads and adds up.

Strategy: each file has one writer, and its layout follows from the experiment alone, so that counting needs no message
and no lock, and the worker that replaces a killed one continues its file. A file's size never changes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from gateway.experiments.confidence import Array
from gateway.routing.assignment import BUCKETS
from gateway.storage.mapped_file import map_file


class CountersFile:
    """Counts and sums by arm, metric and bucket, and plain counts (totals) by arm.

    Args:
        arms: number of arms.
        metrics: number of metrics.
        totals: number of plain counts of an arm.
        path: the common stem of all workers' files of this experiment; None: memory of this process alone.
        worker: the suffix of this worker's file; only one process at a time may use it.
    """

    def __init__(self, arms: int, metrics: int, totals: int, path: Path | None = None, worker: str = "0") -> None:
        # [arms, metrics, (count, sum), buckets], then [arms, totals]. Buckets are innermost: sums over them are
        # contiguous.
        self._shape = (arms, metrics, 2, BUCKETS)
        self._arm_width = metrics * 2 * BUCKETS
        self._totals_at = arms * self._arm_width
        self._totals_width = totals
        self._path = path
        own = path.with_name(f"{path.name}.{worker}") if path is not None else None
        self._data = memoryview(map_file(own, 8 * (self._totals_at + arms * totals))).cast("d")

    def add(self, arm: int, metric: int, bucket: int, value: float) -> None:
        """Count one request and add its value."""
        # Two stores without a lock: a reader in between sees a count without its value, one request's worth of error
        # that the next report does not have.
        at = arm * self._arm_width + metric * 2 * BUCKETS + bucket
        self._data[at] += 1.0
        self._data[at + BUCKETS] += value

    def correct(self, arm: int, metric: int, bucket: int, change: float) -> None:
        """Add `change` to the sum without counting a request: the value of a counted request has changed."""
        self._data[arm * self._arm_width + metric * 2 * BUCKETS + BUCKETS + bucket] += change

    def count(self, arm: int, total: int) -> None:
        """Add one to a plain count."""
        self._data[self._totals_at + arm * self._totals_width + total] += 1.0  # exact up to 2**53

    def read(self) -> tuple[Array, Array]:
        """Return the sums over all workers: [arms, metrics, (count, sum), buckets], and plain counts [arms, totals]."""
        # A copy: this worker goes on counting.
        data = np.array(self._data) if self._path is None else self._sum_of_files()
        return data[: self._totals_at].reshape(self._shape), data[self._totals_at :].reshape(self._shape[0], -1)

    def close(self) -> None:
        """Remove the files of all workers. The mapped memory stays valid. A worker that does not know of the change of
        the endpoint yet may create its file again, and then removes it itself.
        """
        for file in self._files():
            file.unlink(missing_ok=True)

    def _sum_of_files(self) -> Array:
        total = np.zeros(len(self._data))
        for file in self._files():
            with suppress(FileNotFoundError):  # another worker has just closed the experiment
                # A file has its whole size from the moment that it has its name (`map_file`), so shapes agree.
                total += np.fromfile(file)
        return total

    def _files(self) -> list[Path]:
        return [] if self._path is None else list(self._path.parent.glob(f"{self._path.name}.*"))
