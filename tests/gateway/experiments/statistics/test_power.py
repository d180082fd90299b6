"""How much traffic an experiment needs."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from gateway.experiments.statistics.confidence import Interval, Mean, rate_difference
from gateway.experiments.statistics.power import days_until, detectable_effect, requests_for, requests_needed

HALVES = (0.5, 0.5)


def test_the_number_of_requests_and_the_effect_belong_together() -> None:
    needed = requests_for(0.01, 0.0099, HALVES, 0.05)
    assert needed is not None
    assert detectable_effect(0.0099, HALVES, needed, 0.05) == pytest.approx(0.01, rel=0.01)
    assert requests_for(0.005, 0.0099, HALVES, 0.05) > 3 * needed  # type: ignore[operator]
    assert requests_for(0.01, 0.0099, (0.9, 0.1), 0.05) > 2 * needed  # type: ignore[operator]
    assert requests_for(1e-12, 0.25, HALVES, 0.05) is None
    assert detectable_effect(0.25, HALVES, 0, 0.05) == inf


@pytest.mark.slow
def test_the_planned_number_of_requests_has_the_promised_power() -> None:
    needed = requests_for(-0.05, 0.09, HALVES, 0.05)
    assert needed is not None
    source = np.random.default_rng(1)
    n = needed // 2
    found = 0
    for good in source.binomial(n, [0.925, 0.875], (200, 2)) / n:
        control, other = (Mean(p, p * (1 - p) / n, n, 500) for p in good)
        found += rate_difference(control, other, 0.05).high < 0
    assert 0.72 <= found / 200 <= 0.95


def test_requests_until_an_open_comparison_is_decided() -> None:
    # The estimate is within the margin: the interval must become narrower than what is left of it.
    near = requests_needed(Interval(0.0, -0.02, 0.02), 1000, 0.005, 0.05)
    assert near is not None
    assert 8000 < near < 16_000
    # A large estimate must only exclude 0.
    far = requests_needed(Interval(0.018, -0.002, 0.038), 1000, 0.005, 0.05)
    assert far is not None
    assert 100 < far < 400
    assert requests_needed(Interval(0.1, -inf, inf), 50, 0.005, 0.05) is None
    assert requests_needed(Interval(0.0, -0.02, 0.02), 1000, 0.0, 0.05) is None


def test_days() -> None:
    assert days_until(3000, 1500) == 2.0
    assert days_until(3000, 0) is None
