"""Counters and histograms are exposed as prometheus_client exposes its own, and add up over workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from gateway.observability.counters import Counter, Gauge, Histogram, Instrument, SummingCollector
from gateway.observability.series_file import SeriesFile

BOUNDS = (0.001, 0.5, 1, 60)
NAMES = st.sampled_from(["a", 'b "quoted"\\\n', "ü"])
SECONDS = st.one_of(st.sampled_from([0.0, *map(float, BOUNDS)]), st.integers(0, 4000).map(lambda n: n / 32))


def text(registry: CollectorRegistry) -> str:
    """What is exposed, without the times at which series began."""
    return re.sub(r"(?m)^.*_created.*\n", "", generate_latest(registry).decode())


def exposed(file: SeriesFile, instrument: Instrument) -> str:
    registry = CollectorRegistry()
    registry.register(SummingCollector(file, [instrument]))
    return text(registry)


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 1000))))
def test_a_counter_is_exposed_like_prometheus_clients(added: Sequence[tuple[str, str, int]]) -> None:
    file, theirs = SeriesFile(), CollectorRegistry()
    counter = Counter(file, "things", "How many", ("model", "served"))
    reference = prometheus_client.Counter("things", "How many", ("model", "served"), registry=theirs)
    for model, served, value in added:
        counter.add((model, served), value)
        reference.labels(model, served).inc(value)
    assert exposed(file, counter) == text(theirs)


@given(st.lists(st.tuples(NAMES, SECONDS)))
def test_a_histogram_is_exposed_like_prometheus_clients(added: Sequence[tuple[str, float]]) -> None:
    file, theirs = SeriesFile(), CollectorRegistry()
    histogram = Histogram(file, "waits_seconds", "How long", ("model",), BOUNDS)
    reference = prometheus_client.Histogram("waits_seconds", "How long", ("model",), buckets=BOUNDS, registry=theirs)
    for model, seconds in added:
        histogram.observe((model,), seconds)
        reference.labels(model).observe(seconds)
    assert exposed(file, histogram) == text(theirs)


def test_every_worker_shows_the_sums_of_all(tmp_path: Path) -> None:
    files = [SeriesFile(tmp_path, slot) for slot in ("0", "1")]
    counters = [Counter(file, "things", "How many", ("model",)) for file in files]
    histograms = [Histogram(file, "waits", "How long", ("model",), (1.0,)) for file in files]
    gauges = [Gauge(file, "running", "Now") for file in files]
    for counter, histogram, gauge in zip(counters, histograms, gauges, strict=True):
        counter.add(("a",))
        histogram.observe(("a",), 0.5)
        histogram.observe(("a",), 2.0)
        gauge.add(1.0)
    counters[1].add(("b",), 3.0)
    for number, file in enumerate(files):
        assert 'things_total{model="a"} 2.0\nthings_total{model="b"} 3.0\n' in exposed(file, counters[number])
        assert 'waits_bucket{le="1.0",model="a"} 2.0\nwaits_bucket{le="+Inf",model="a"} 4.0\n' in exposed(
            file, histograms[number]
        )
        assert 'waits_sum{model="a"} 5.0\n' in exposed(file, histograms[number])
        assert exposed(file, gauges[number]).endswith("\nrunning 2.0\n")


def test_a_gauge_leaves_out_dead_workers_and_begins_with_zero_in_their_place(tmp_path: Path) -> None:
    file, dying = SeriesFile(tmp_path, "0"), SeriesFile(tmp_path, "1")
    gauge = Gauge(file, "running", "Now")
    gauge.add(1.0)
    Gauge(dying, "running", "Now").add(5.0)
    assert exposed(file, gauge).endswith("\nrunning 6.0\n")
    dying.close()
    assert exposed(file, gauge).endswith("\nrunning 1.0\n")
    Gauge(SeriesFile(tmp_path, "1"), "running", "Now").add(2.0)
    assert exposed(file, gauge).endswith("\nrunning 3.0\n")
