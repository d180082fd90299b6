"""Counters, histograms and gauges for Prometheus that add up over workers.

prometheus_client's own take a lock and several calls for each increment: 38 µs a request in its multiprocess mode. Here
an increment is a dictionary lookup and a store to mapped memory, which takes 4 µs a request (decision 15). On a scrape
prometheus_client formats the sums. One thread counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.series_file import Cells, Labels, SeriesFile, Totals

_ZEROS = memoryview(bytes(16)).cast("d")


class Instrument(Protocol):
    """A metric that this worker counts."""

    def expose(self, totals: Totals, living: Totals) -> Metric:
        """Return the metric for Prometheus, from the sums over all workers and over the living ones."""
        ...


class SummingCollector(Collector):
    """Exposes instruments with their sums over all workers."""

    def __init__(self, file: SeriesFile, instruments: Sequence[Instrument]) -> None:
        self._file = file
        self._instruments = instruments

    def collect(self) -> Iterator[Metric]:
        """Read the files of all workers, and return the metrics."""
        # Two passes over the files; gauges need only the living workers, counters and histograms all.
        totals, living = self._file.read(), self._file.read(living=True)
        for instrument in self._instruments:
            yield instrument.expose(totals, living)


class Counter:
    """A counter.

    Args:
        file: where it counts.
        name: as it is exposed, without `_total`.
        help: what it counts.
        labels: their names.
    """

    def __init__(self, file: SeriesFile, name: str, help: str, labels: Sequence[str]) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._cells = _Cells(file, name, 1)

    def add(self, labels: Labels, value: float = 1.0) -> None:
        """Add `value` to the series with these label values."""
        # Not atomic: a second thread of this process would need a lock.
        self._cells[labels][0] += value

    def expose(self, totals: Totals, living: Totals) -> Metric:  # noqa: ARG002 - `Instrument`
        """Return the sums over all workers, dead ones included."""
        # prometheus_client appends `_total` to a counter's name.
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        # Without labels there is one series, also before anything has happened: else no rate could see the first event.
        for labels, (value,) in (totals.get(self._name) or ({} if self._labels else {(): [0.0]})).items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """A histogram, of seconds or tokens.

    Args:
        file, name, help, labels: as for `Counter`.
        bounds: of the buckets, upper and inclusive, ascending.
    """

    def __init__(self, file: SeriesFile, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._bounds = bounds
        # `str(float())` gives the `le` labels that prometheus_client gives its own histograms: "1.0", not "1".
        self._ends = [str(float(bound)) for bound in bounds] + ["+Inf"]
        self._cells = _Cells(file, name, len(bounds) + 2)  # a count for each bucket, and the sum
        self._observers: dict[Labels, Callable[[float], None]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count one observation in the series with these label values."""
        cells = self._cells[labels]
        # Buckets hold their own count only, one store per observation. Prometheus wants them cumulative: `expose` adds
        # them up. `bisect_left`: a value equal to a bound belongs to it (`le` is inclusive); beyond the last one it is
        # +Inf.
        cells[bisect_left(self._bounds, value)] += 1.0
        cells[-1] += value

    def at(self, labels: Labels) -> Callable[[float], None]:
        """What counts in the series with these label values, for those who count in one series again and again."""
        if (found := self._observers.get(labels)) is None:
            cells, bounds = self._cells[labels], self._bounds

            def observe(value: float) -> None:
                cells[bisect_left(bounds, value)] += 1.0
                cells[-1] += value

            found = self._observers[labels] = observe  # the same for all streams, so that it stays in the CPU's cache
        return found

    def expose(self, totals: Totals, living: Totals) -> Metric:  # noqa: ARG002 - `Instrument`
        """Return the sums over all workers, dead ones included."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, (*counts, total) in totals.get(self._name, {}).items():
            buckets = list(zip(self._ends, accumulate(counts), strict=True))
            family.add_metric(labels, buckets, total)
        return family


class Gauge:
    """A number that goes up and down; it begins with 0 in every worker.

    Args:
        file, name, help, labels: as for `Counter`.
        mean: whether the mean over living workers is shown instead of the sum.
    """

    def __init__(
        self, file: SeriesFile, name: str, help: str, labels: Sequence[str] = (), *, mean: bool = False
    ) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._mean = mean
        # With a mean, the second double is how many workers have the series: 1 of each.
        self._cells = _Cells(file, name, 2 if mean else 1)
        for cells in file.own(name):  # what a worker that died in this slot had counted is over
            cells[:] = _ZEROS[: len(cells)]
        if not labels:
            self.set(0.0)

    def add(self, value: float) -> None:
        """Change the number without labels by `value`."""
        self._cells[()][0] += value

    def set(self, value: float, labels: Labels = ()) -> None:
        """Replace the number of the series with these label values."""
        cells = self._cells[labels]
        cells[0] = value
        if self._mean:
            cells[1] = 1.0

    def expose(self, totals: Totals, living: Totals) -> Metric:  # noqa: ARG002 - `Instrument`
        """Return the sum or the mean over living workers."""
        family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        found = living.get(self._name, {})
        if not self._labels:
            found = found or {(): [0.0]}  # no living worker has the series: 0
        for labels, (value, *workers) in found.items():
            # A series of which no living worker has said anything is left from one that died.
            if not workers or workers[0]:
                family.add_metric(labels, value / workers[0] if workers else value)
        return family


class _Cells(dict[Labels, "Cells"]):
    """The doubles of a metric's series by label values; a series begins when it is first looked up."""

    def __init__(self, file: SeriesFile, name: str, width: int) -> None:
        super().__init__()
        self._file = file
        self._name = name
        self._width = width

    # A dictionary calls this for a missing key only, so that the usual increment runs no Python code for its lookup.
    def __missing__(self, labels: Labels) -> Cells:
        found = self[labels] = self._file.series(self._name, labels, self._width)
        return found
