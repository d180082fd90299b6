"""Guardrails by quantiles, and how those of failures share their alpha."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.config import Endpoint, MetricGuardrail, ServedEntity
from gateway.config import Experiment as Settings
from gateway.experiments.counters_file import CountersFile, Layout
from gateway.experiments.guardrail import FIRST_BET, broken
from gateway.experiments.metrics import METRICS, TIMES, TOTALS
from gateway.experiments.report import SplitSums
from gateway.experiments.statistics.histogram import BINS, logarithm_and_bin
from gateway.routing.assignment import BUCKETS

ARMS = tuple(ServedEntity(name=name, backend="s", traffic_percentage=50) for name in "ab")
LATENCY = TIMES.index("latency")


def counted(slow: float) -> SplitSums:
    """Latencies of 4000 requests of each arm, of which the other arm has so large a share ten times as long."""
    layout = Layout(2, 1 + len(METRICS) + len(TIMES), len(TIMES), len(TOTALS))
    counters, source = CountersFile(layout), np.random.default_rng(1)
    for arm in (0, 1):
        for number, seconds in enumerate(source.lognormal(0, 0.3, 4000)):
            long = arm and number < slow * 4000
            logarithm, at = logarithm_and_bin(float(seconds * 10 if long else seconds))
            counters.add(arm, number * 7 % BUCKETS, [(1 + len(METRICS) + LATENCY, logarithm)])
            counters.data[counters.histograms(arm) + LATENCY * BINS + at] += 1.0
    return SplitSums((50, 50), counters.read())


@pytest.mark.parametrize(
    ("quantile", "slow", "stops"), [("p95", 0.1, True), ("p50", 0.1, False), ("p95", 0.0, False), ("p95", 0.02, False)]
)
def test_a_quantile_of_a_time_may_stop_an_arm(quantile: str, slow: float, stops: bool) -> None:
    guardrail = MetricGuardrail(metric="latency", quantile=quantile, worse_than=0.5)  # type: ignore[arg-type]
    endpoint = Endpoint(served_entities=ARMS, experiment=Settings(guardrails=(guardrail,)))
    found = broken(endpoint, METRICS, [counted(slow)], {"b"})
    assert found == ({"b": f"{quantile} of latency"} if stops else {})


def test_splits_share_the_alpha_of_the_early_stop() -> None:
    assert 0.99 < sum(FIRST_BET / number**2 for number in range(1, 100)) < 1
