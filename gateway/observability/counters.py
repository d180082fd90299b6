"""Counts and times for Prometheus, kept as plain numbers and put in its form when somebody asks.

prometheus_client's own take a lock and several calls for each increment, and a histogram's observation one for each
bucket: together a twentieth of what a request costs. One thread counts here, and may read meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class Count(Collector):
    """A counter.

    Args:
        name: as it is exposed, without `_total`.
        help: what it counts.
        names: of the labels.
        constant: the values of the first of them, which are always the same.
    """

    def __init__(self, name: str, help: str, names: Sequence[str], constant: Labels = ()) -> None:
        self._told = (name, help)
        self._names = names
        self._constant = constant
        self._values: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, value: float = 1.0) -> None:
        """Count `value` more."""
        self._values[labels] += value

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        family = CounterMetricFamily(*self._told, labels=self._names)
        for labels, value in self._values.items():
            family.add_metric((*self._constant, *labels), value)
        yield family


class Times(Collector):
    """A histogram of seconds.

    Args:
        name, help, names, constant: as a `Count`'s.
        bounds: of its buckets, upper and inclusive, ascending.
    """

    def __init__(
        self, name: str, help: str, names: Sequence[str], bounds: Sequence[float], constant: Labels = ()
    ) -> None:
        self._told = (name, help)
        self._names = names
        self._constant = constant
        self._bounds = bounds
        self._ends = [str(float(bound)) for bound in bounds] + ["+Inf"]
        self._values: defaultdict[Labels, list[float]] = defaultdict(lambda: [0.0] * (len(bounds) + 2))

    def add(self, labels: Labels, seconds: float) -> None:
        """One more."""
        values = self._values[labels]
        values[bisect_left(self._bounds, seconds)] += 1.0
        values[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        family = HistogramMetricFamily(*self._told, labels=self._names)
        for labels, (*counts, total) in self._values.items():
            buckets = list(zip(self._ends, accumulate(counts), strict=True))
            family.add_metric((*self._constant, *labels), buckets, total)
        yield family
