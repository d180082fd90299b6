"""Guardrails by quantiles and cost, and how those of failures share their alpha."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.config import Endpoint, MetricGuardrail, Price, ServedEntity
from gateway.config import Experiment as Settings
from gateway.experiments.counters_file import CountersFile, Layout
from gateway.experiments.guardrail import FIRST_BET, broken
from gateway.experiments.metrics import METRICS, TIMES, TOTALS
from gateway.experiments.report import SplitSums
from gateway.experiments.statistics.histogram import BINS, logarithm_and_bin
from gateway.routing.assignment import BUCKETS

ARMS = tuple(ServedEntity(name=name, backend="s", traffic_percentage=50) for name in "ab")
LATENCY = TIMES.index("latency")
LAYOUT = Layout(2, 1 + len(METRICS) + len(TIMES), len(TIMES), len(TOTALS))
PROMPT, COMPLETION = (
    next(row for row, metric in enumerate(METRICS, 1) if metric.name == name)
    for name in ("prompt_tokens", "completion_tokens")
)
SAME = Price(prompt=1.0, completion=2.0)


def counted(slow: float) -> SplitSums:
    """Latencies of 4000 requests of each arm, of which the other arm has so large a share ten times as long."""
    counters, source = CountersFile(LAYOUT), np.random.default_rng(1)
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


@pytest.mark.parametrize(
    ("price", "worse_than", "stops"),
    [
        (Price(prompt=1.0, completion=3.0), 0.1, True),
        (Price(prompt=1.0, completion=3.0), 0.6, False),
        (SAME, 0.0, False),
    ],
)
def test_an_arm_that_costs_more_may_be_stopped(price: Price, worse_than: float, stops: bool) -> None:
    """Of 10 tokens of a prompt and about 10 of an answer, the dearer price makes about 40 instead of 30."""
    counters, source = CountersFile(LAYOUT), np.random.default_rng(1)
    for arm in (0, 1):
        for number, tokens in enumerate(source.poisson(10, 2000)):
            counters.add(arm, number * 7 % BUCKETS, [(PROMPT, 10.0), (COMPLETION, float(tokens))])
    arms = tuple(replace(arm, price=each) for arm, each in zip(ARMS, (SAME, price), strict=True))
    settings = Settings(guardrails=(MetricGuardrail(metric="cost", worse_than=worse_than),))
    endpoint = Endpoint(served_entities=arms, experiment=settings)
    assert broken(endpoint, METRICS, [SplitSums((50, 50), counters.read())], {"b"}) == ({"b": "cost"} if stops else {})


def test_splits_share_the_alpha_of_the_early_stop() -> None:
    assert 0.99 < sum(FIRST_BET / number**2 for number in range(1, 100)) < 1
