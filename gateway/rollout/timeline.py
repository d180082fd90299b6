"""How the intervals of experiments have moved: a point every minute or so, to draw them over time.

Points are in a file per endpoint beside the figures, so that they last as long. The first worker that finds the last
point old enough adds one; a file that has grown long loses every second point of its older half.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.deployment.deployments import Deployments
from gateway.experiments.experiments import Experiments
from gateway.experiments.metrics import METRICS

if TYPE_CHECKING:
    from gateway.experiments.experiment import Experiment
    from gateway.experiments.statistics.comparison import Comparison

log = structlog.get_logger()

_INTERVAL = 60.0
"""Seconds between two points, at least."""
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_MOST = 400
"""Points of an endpoint."""


RATES = frozenset(metric.name for metric in METRICS if metric.kind == "rate")


class IntervalPoint(msgspec.Struct, frozen=True, array_like=True):
    """An interval at a time, absolute for rates, else relative; bounds are null while there are too few requests."""

    arm: str
    metric: str
    difference: float | None
    low: float | None
    high: float | None


class Point(msgspec.Struct, frozen=True):
    """All intervals at a time. `requests` are those of all arms by then; `time` is Unix time in seconds."""

    time: float
    requests: int
    intervals: tuple[IntervalPoint, ...]


class Timeline:
    """The points of all endpoints.

    Args:
        folder: of the figures; None: points are kept by this process alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / "timeline" if folder is not None else None
        self._memory: dict[str, list[Point]] = {}
        self._looked: dict[str, float] = {}

    def look(self, deployments: Deployments, experiments: Experiments) -> None:
        """Add the points that are due."""
        for name, deployed in deployments.items():
            if len(deployed.serving.served_entities) > 1 and deployed.serving.has_experiment:
                try:
                    self.note(name, experiments.of(name))
                except OSError as error:
                    log.error("timeline.not_written", model=name, error=str(error))

    def note(self, endpoint: str, experiment: Experiment) -> None:
        """Add a point if the last one is old enough and requests have come since."""
        now = time.time()
        if now - self._looked.get(endpoint, 0.0) < _INTERVAL / 4:
            return
        self._looked[endpoint] = now
        if self._folder is None:
            self._memory[endpoint] = _added(self._memory.get(endpoint, []), experiment, now)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = _stem(endpoint)
        path = self._folder / f"{stem}.json"
        with (self._folder / f"{stem}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another worker is at it
            before = _read(path)
            after = _added(before, experiment, now)
            if after is not before:
                new = path.with_suffix(".new")
                new.write_bytes(msgspec.json.encode(after))
                os.replace(new, path)

    def of(self, endpoint: str) -> list[Point]:
        """The points of an endpoint, the oldest first."""
        if self._folder is None:
            return self._memory.get(endpoint, [])
        return _read(self._folder / f"{_stem(endpoint)}.json")


def _stem(endpoint: str) -> str:
    """The name of an endpoint's files. A digest unless it is plain: any text may name an endpoint, also a path."""
    if _PLAIN.fullmatch(endpoint):
        return endpoint
    return blake2b(endpoint.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _added(points: list[Point], experiment: Experiment, now: float) -> list[Point]:
    if points and now - points[-1].time < _INTERVAL:
        return points
    found, since = experiment.report(), experiment.history()[0].since
    requests = sum(arm.exposures for arm in found.arms)
    # Older points are of figures that were reset.
    kept = [point for point in points if point.time >= since]
    if not requests or (kept and kept[-1].requests == requests):
        return points
    if len(kept) >= _MOST:
        half = len(kept) // 2
        kept = [*kept[:half:2], *kept[half:]]
    intervals = tuple(IntervalPoint(each.arm, each.metric, *map(_known, _shown(each))) for each in found.comparisons)
    return [*kept, Point(now, requests, intervals)]


def _shown(found: Comparison) -> tuple[float | None, float | None, float | None]:
    """The difference as it is drawn: of rates absolute, of others as a share of the control's mean."""
    if found.metric in RATES:
        return found.difference, found.low, found.high
    return found.relative, found.relative_low, found.relative_high


def _known(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None  # JSON has no infinity


def _read(path: Path) -> list[Point]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Point])
    except (FileNotFoundError, msgspec.DecodeError):
        return []
