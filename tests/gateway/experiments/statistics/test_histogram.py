"""Histograms of durations: where values go, and what their quantiles and bounds are."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np
import pytest

from gateway.experiments.statistics.confidence import Array, Interval, Mean
from gateway.experiments.statistics.histogram import (
    BINS,
    EDGES,
    LONGEST,
    RATIO,
    SHORTEST,
    UNFINISHED,
    Asked,
    bin_of,
    log_design_effect,
    log_seconds,
    log_variance,
    quantile,
    quantile_bounds,
    quantile_ratios,
)


def bounds(counts: Array, q: float, alpha: float, design_effect: float = 1.0) -> Interval:
    return quantile_bounds([Asked(counts, q, alpha, design_effect)])[0]


def ratio(control: Array, other: Array, q: float, alpha: float) -> Interval:
    return quantile_ratios([(Asked(control, q, alpha), Asked(other, q, alpha))])[0]


def counted(values: Array) -> Array:
    return np.bincount([bin_of(float(value)) for value in values], minlength=BINS).astype(float)


@pytest.mark.parametrize(
    ("seconds", "bin"),
    [(0.0, 0), (0.99e-4, 0), (1.01e-4, 1), (1.04e-4, 1), (1.06e-4, 2), (1e9, UNFINISHED), (inf, UNFINISHED)],
)
def test_places_of_values(seconds: float, bin: int) -> None:
    assert bin_of(seconds) == bin
    assert EDGES[0] == SHORTEST
    assert EDGES[-2] < LONGEST <= EDGES[-1]


def test_a_value_lies_within_the_edges_of_its_bin() -> None:
    for seconds in np.geomspace(2e-4, 3000, 500):
        at = bin_of(float(seconds))
        assert EDGES[at - 1] * (1 - 1e-9) <= seconds <= EDGES[at] * (1 + 1e-9)


def test_the_logarithm_is_bounded_below() -> None:
    assert (log_seconds(0.0), log_seconds(-1.0), log_seconds(2.0)) == (log(SHORTEST), log(SHORTEST), log(2.0))


def test_quantiles_are_as_exact_as_the_bins() -> None:
    values = np.random.default_rng(0).lognormal(-1, 1, 20_000)
    counts = counted(values)
    for q in (0.05, 0.5, 0.95, 0.99):
        assert quantile(counts, q) == pytest.approx(np.quantile(values, q), rel=RATIO - 1)
    assert log_variance(counts) == pytest.approx(1.0, rel=0.05)


def test_requests_without_an_end_rank_as_longest() -> None:
    counts = counted(np.full(100, 0.2))
    counts[UNFINISHED] += 30
    assert quantile(counts, 0.5) == pytest.approx(0.2, rel=RATIO - 1)
    found = bounds(counts, 0.95, 0.05)
    assert (found.estimate, found.high) == (inf, inf)


def test_nothing_is_said_of_nothing_and_little_of_few() -> None:
    nothing = np.zeros(BINS)
    assert bounds(nothing, 0.5, 0.05)[1:] == (-inf, inf)
    assert ratio(nothing, counted(np.ones(50)), 0.5, 0.05)[1:] == (0.0, inf)
    few = bounds(counted(np.array([0.1, 0.2, 0.3])), 0.95, 0.05)
    assert (few.low, few.high) == (0.0, inf)


def test_a_design_effect_widens_the_bounds() -> None:
    counts = counted(np.random.default_rng(1).lognormal(0, 0.5, 5000))
    narrow, wide = bounds(counts, 0.5, 0.05), bounds(counts, 0.5, 0.05, 10.0)
    assert wide.low < narrow.low < 1.0 < narrow.high < wide.high
    many = counted(np.random.default_rng(2).lognormal(0, 0.5, 500))
    assert log(wide.high / wide.low) == pytest.approx(
        log(bounds(many, 0.5, 0.05).high / bounds(many, 0.5, 0.05).low), abs=0.11
    )


def test_the_design_effect_of_few_units_is_the_worst_possible() -> None:
    counts = counted(np.random.default_rng(5).lognormal(0, 1, 400))
    assert log_design_effect(counts, Mean(0.0, inf, 400.0, 8.0)) == 50.0
    assert log_design_effect(counts, Mean(0.0, 1.0 / 400, 400.0, 200.0)) == pytest.approx(1.1, abs=0.2)
    assert log_design_effect(counts, Mean(0.0, 1.0, 400.0, 20.0)) == 20.0
    assert log_design_effect(counts, Mean(0.0, inf, 0.0)) == 1.0


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("q", [0.5, 0.95])
def test_bounds_hold_at_every_look(q: float) -> None:
    """Heavy tails and time-outs: 100 experiments of 4000 requests, 25 looks each."""
    source = np.random.default_rng(3)
    truth = exp({0.5: 0.0, 0.95: 1.6448536}[q] * 1.5)
    looks = np.unique(np.geomspace(20, 4000, 25).astype(int))
    missed = ratio_missed = 0
    for _ in range(100):
        bins = np.floor((source.normal(0, 1.5, (2, 4000)) - log(SHORTEST)) / log(RATIO)).astype(int) + 1
        histograms = [[np.bincount(arm[:look], minlength=BINS) for arm in bins] for look in looks]
        found = [bounds(arms[0], q, 0.05) for arms in histograms]
        missed += any(not each.low <= truth <= each.high for each in found)
        ratios = [ratio(*arms, q, 0.05) for arms in histograms]
        ratio_missed += any(not found.low <= 1.0 <= found.high for found in ratios)
    assert missed <= 0.05 * 100
    assert ratio_missed <= 0.05 * 100
    assert ratios[-1].high / ratios[-1].low < 4


def test_a_slower_arm_is_found() -> None:
    source = np.random.default_rng(4)
    one, other = counted(source.lognormal(0, 0.5, 3000)), counted(source.lognormal(0.3, 0.5, 3000))
    found = ratio(one, other, 0.5, 0.05)
    assert 1.0 < found.low < exp(0.3) < found.high
    assert found.estimate == pytest.approx(exp(0.3), rel=0.1)
