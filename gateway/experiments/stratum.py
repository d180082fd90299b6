"""What is counted of an experiment while its split stays the same, over all workers.

Strategy: the traffic of a split is a stratum of its own, since shares that change together with the traffic would make
arms differ that are alike (Simpson's paradox). What can be added to a running experiment is in a file of its own: a
feedback metric, or the pairs, come and go without a change of the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from gateway.experiments.counters_file import CountersFile, Layout, Sums, read, zeros
from gateway.experiments.metrics import METRICS, SHADOW_METRICS, TIMES, TOTALS
from gateway.experiments.pairs.agreement import PAIR_METRICS
from gateway.experiments.statistics.confidence import Array

ABOUT = "about.json"
"""The name of the file that says since when a split is served."""

REQUESTS, PAIRS, SHADOWS, UNENDED = "requests", "pairs", "shadows", "unended"
"""The names of the files of all requests, of pairs, of copies for shadows, and of requests without an end."""

LOST, CANCELLED = 0, 1
"""The rows of requests without an end: those of workers that were killed, and those that a shutdown cancelled."""

LOGARITHMS_AT = 1 + len(METRICS)
"""In the file of requests: row 0 is exposures, then come `METRICS`, then the logarithms of `TIMES`."""

_ENDED_AT = 1 + [metric.name for metric in METRICS].index("abandoned")
"""The row of the file of requests that every request is counted in that ended."""

_continued: set[Path] = set()
"""The files that this process counts in: what they held when it began is of processes that have ended."""


def feedback_file(metric: str) -> str:
    """The name of a feedback metric's file. A digest: any text may name a metric."""
    return "feedback-" + blake2b(metric.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def layout_of(arms: int, name: str) -> Layout:
    """What one of a split's files counts."""
    if name == REQUESTS:
        return Layout(arms, LOGARITHMS_AT + len(TIMES), len(TIMES), len(TOTALS))
    return Layout(arms, {PAIRS: len(PAIR_METRICS), SHADOWS: len(SHADOW_METRICS), UNENDED: 2}.get(name, 1))


def size_of(split: str, name: str) -> int:
    """The bytes of one of a split's files."""
    return 8 * layout_of(1 + split.count("-"), name).size


class SplitReport(msgspec.Struct, frozen=True):
    """A split, and when it was first served.

    Attributes:
        traffic_percentages: in the order of the arms.
        since: Unix time in seconds.
        config_version: of the endpoint then.
    """

    traffic_percentages: tuple[int, ...]
    since: float
    config_version: int


class Stratum:
    """The counters of one split.

    Args:
        split: the arms' percentages, joined by "-", which is also the name of its folder.
        folder: where workers share the counters of the experiment; None: memory of this process alone.
        slot: this worker's number in the folder.
    """

    def __init__(self, split: str, folder: Path | None, slot: int) -> None:
        self.shares = tuple(int(share) for share in split.split("-"))
        self._arms = len(self.shares)
        self._folder = folder / split if folder is not None else None
        self._slot = slot
        self._files: dict[str, CountersFile] = {}
        self._began: SplitReport | None = None

    def begin(self, config_version: int) -> None:
        """Note since when the split is served, unless that is known."""
        began = SplitReport(self.shares, time.time(), config_version)
        if self._folder is None:
            self._began = self._began or began
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if (self._folder / ABOUT).exists():
            return  # on a full disk, too, where a worker that was killed is to be replaced
        # Another worker may do the same: the first one's file stays, and is complete when it has its name.
        new = self._folder / f".{ABOUT}.{self._slot}"
        new.write_bytes(msgspec.json.encode(began))
        with suppress(FileExistsError):
            os.link(new, self._folder / ABOUT)
        new.unlink()

    def report(self) -> SplitReport:
        """Since when the split is served, once `begin` was called."""
        if self._folder is not None:
            return msgspec.json.decode((self._folder / ABOUT).read_bytes(), type=SplitReport)
        assert self._began is not None
        return self._began

    def file(self, name: str) -> CountersFile:
        """One of the files, for counting; made if need be."""
        if (found := self._files.get(name)) is None:
            path = self._folder / name if self._folder is not None else None
            found = self._files[name] = CountersFile(self._layout(name), path, self._slot)
            if name == REQUESTS and path is not None:
                self._count_lost(found, path.with_name(f"{REQUESTS}.{self._slot}"))
        return found

    def read(self, feedback: Sequence[str]) -> Sums:
        """The sums over all workers. Its rows are exposures, `METRICS`, these feedback metrics, the logarithms of
        `TIMES`, and pair metrics.
        """
        requests = self._read(REQUESTS)
        metrics, logarithms = requests.rows[:, :LOGARITHMS_AT], requests.rows[:, LOGARITHMS_AT:]
        sent = [self._read(feedback_file(metric)).rows for metric in feedback]
        rows = np.concatenate((metrics, *sent, logarithms, self._read(PAIRS).rows), axis=1)
        return requests._replace(rows=rows)

    def copies(self) -> Array:
        """The sums over all workers of the copies for shadows: [arms, `SHADOW_METRICS`, (count, sum), buckets]."""
        return self._read(SHADOWS).rows

    def unended(self) -> Array:
        """The sums over all workers of requests that were assigned and never ended: [arms, 2, buckets]."""
        return self._read(UNENDED).rows[:, :, 0]

    def _count_lost(self, requests: CountersFile, path: Path) -> None:
        """Count what a killed worker had begun: nothing in its file is in flight when this process continues it."""
        if path in _continued:
            return
        _continued.add(path)
        begun, ended = requests.own().rows[:, [0, _ENDED_AT], 0].swapaxes(0, 1)
        if (begun <= ended).all():
            return
        file = self.file(UNENDED)
        missing = begun - ended - file.own().rows[:, :, 0].sum(axis=1)
        for arm, bucket in np.argwhere(missing > 0).tolist():
            for _ in range(int(missing[arm, bucket])):
                file.count_row(arm, bucket, LOST)

    def _read(self, name: str) -> Sums:
        if self._folder is not None:
            return read(self._layout(name), self._folder / name)
        return self._files[name].read() if name in self._files else zeros(self._layout(name))

    def _layout(self, name: str) -> Layout:
        return layout_of(self._arms, name)
