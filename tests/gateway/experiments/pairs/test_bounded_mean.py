"""Exact bounds of a mean in [0, 1]: what they cover at every look, and where they stand alone."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest

from gateway.experiments.pairs.bounded_mean import bounded_mean, exact_bounds
from gateway.routing.assignment import BUCKETS

LOOKS = np.unique(np.geomspace(1, 3000, 60).astype(int))


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("kind", ["zeros and ones", "shares"])
def test_a_mean_is_missed_at_any_look_by_at_most_alpha(mean: float, kind: str) -> None:
    source, alpha, missed = np.random.default_rng(7), 0.1, 0
    for _ in range(200):
        values = source.random(3000) < mean if kind == "zeros and ones" else source.beta(mean, 1 - mean, 3000)
        totals = np.cumsum(values)[LOOKS - 1]
        bounds = [exact_bounds(total / count, count, alpha) for total, count in zip(totals, LOOKS, strict=True)]
        missed += any(not low <= mean <= high for low, high in bounds)
    assert missed <= 20  # 200 * alpha; the mixture is conservative, so this is no close call


def test_one_unit_counts_as_one_value() -> None:
    counts, sums = np.zeros(BUCKETS), np.zeros(BUCKETS)
    counts[0] = sums[0] = 1000.0
    assert bounded_mean(counts, sums, 0.05).low < 0.05
    assert exact_bounds(1.0, 1000, 0.05)[0] > 0.99


def test_correlated_units_are_not_narrower_than_their_clusters() -> None:
    counts, sums = np.zeros(BUCKETS), np.zeros(BUCKETS)
    counts[:40], sums[:20] = 100.0, 100.0  # each unit always has the same value
    found = bounded_mean(counts, sums, 0.05)
    low, high = exact_bounds(0.5, 4000, 0.05)
    assert found.low < low - 0.1 < high + 0.1 < found.high


def test_nothing_is_known_of_no_value() -> None:
    found = bounded_mean(np.zeros(BUCKETS), np.zeros(BUCKETS), 0.05)
    assert isnan(found.estimate)
    assert (found.low, found.high) == (-inf, inf)
