"""Counts and times, told as prometheus_client tells its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.observability.counters import Count, Times

BOUNDS = (0.001, 0.5, 1, 60)
NAMES = st.sampled_from(["a", 'b "quoted"\\\n', "ü"])
SECONDS = st.one_of(st.sampled_from([0.0, *map(float, BOUNDS)]), st.integers(0, 4000).map(lambda n: n / 32))


def text(registry: CollectorRegistry) -> str:
    """What is exposed, without the times at which series began."""
    return re.sub(r"(?m)^.*_created.*\n", "", generate_latest(registry).decode())


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 1000))))
def test_counts_are_prometheus_counters(added: Sequence[tuple[str, str, int]]) -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    count = Count("things", "How many", ("worker", "model", "served"), ("7",))
    mine.register(count)
    counter = Counter("things", "How many", ("worker", "model", "served"), registry=theirs)
    for model, served, value in added:
        count.add((model, served), value)
        counter.labels("7", model, served).inc(value)
    assert text(mine) == text(theirs)


@given(st.lists(st.tuples(NAMES, SECONDS)))
def test_times_are_prometheus_histograms(added: Sequence[tuple[str, float]]) -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("waits_seconds", "How long", ("model",), BOUNDS)
    mine.register(times)
    histogram = Histogram("waits_seconds", "How long", ("model",), buckets=BOUNDS, registry=theirs)
    for model, seconds in added:
        times.add((model,), seconds)
        histogram.labels(model).observe(seconds)
    assert text(mine) == text(theirs)
