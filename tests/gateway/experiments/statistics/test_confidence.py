"""The statistics by simulation: units of unlike behaviour come back many times, and somebody looks all the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

import numpy as np
import pytest

from gateway.experiments.statistics.confidence import (
    Array,
    Interval,
    Mean,
    difference,
    mean,
    means_of,
    rate_difference,
    rate_differences,
    sample_ratio_mismatch,
    strata_weights,
)
from gateway.routing.assignment import BUCKETS

ALPHA = 0.05
RUNS = 300
PEEKS = 60
PER_PEEK = 100


def simulate(seed: int, effect: float, kind: str, lost: float = 0.0, units: int = 600) -> Iterator[tuple[Array, Array]]:
    """Counts and sums, each [arms, buckets], at every look.

    Half of the units are in arm 1, whose mean is higher by `effect`. Every unit has a mean of its own. A share `lost`
    of the requests of arm 1 is never counted.
    """
    source = np.random.default_rng(seed)
    arms = source.integers(0, 2, units)
    buckets = source.integers(0, BUCKETS, units)
    own = source.beta(16, 4, units) if kind == "success" else source.lognormal(0, 0.5, units)
    asking = np.cumsum(source.lognormal(0, 0.8, units))  # few ask much
    asking /= asking[-1]
    counts, sums = np.zeros((2, BUCKETS)), np.zeros((2, BUCKETS))
    for _ in range(PEEKS):
        asked = np.searchsorted(asking, source.random(PER_PEEK))
        asked = asked[(arms[asked] == 0) | (source.random(PER_PEEK) >= lost)]
        level = own[asked] + effect * arms[asked]
        values = (
            source.random(len(asked)) < level if kind == "success" else level * source.lognormal(0, 0.5, len(asked))
        )
        np.add.at(counts, (arms[asked], buckets[asked]), 1.0)
        np.add.at(sums, (arms[asked], buckets[asked]), values.astype(float))
        yield counts, sums


TRUTH = {"success": 1.0, "seconds": float(np.exp(0.125))}  # by how much an effect on a unit's level moves the mean


def compared(kind: str, looks: Iterable[tuple[Array, Array]]) -> list[Interval]:
    """The intervals at these looks, all at once."""
    rows = np.array([(counts.copy(), sums.copy()) for counts, sums in looks])  # [looks, (count, sum), arms, buckets]
    control, other = (means_of(rows[None, :, :, arm]) for arm in (0, 1))
    asked = [(*sides, ALPHA) for sides in zip(control, other, strict=True)]
    return rate_differences(asked) if kind == "success" else [difference(*each) for each in asked]


def misses(kind: str, effect: float) -> float:
    """The share of runs in which the interval misses the truth at any look."""
    truth = effect * TRUTH[kind]
    looks = (compared(kind, simulate(seed, effect, kind)) for seed in range(RUNS))
    return sum(any(not each.low <= truth <= each.high for each in run) for run in looks) / RUNS


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["success", "seconds"])
def test_two_equal_arms_raise_an_alarm_in_at_most_one_run_of_twenty(kind: str) -> None:
    assert misses(kind, 0.0) <= ALPHA


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "effect"), [("success", -0.1), ("seconds", 0.3)])
def test_intervals_cover_the_truth_at_all_looks_together(kind: str, effect: float) -> None:
    assert misses(kind, effect) <= ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "effect"), [("success", -0.12), ("seconds", 0.5)])
def test_a_stated_effect_is_found(kind: str, effect: float) -> None:
    found = 0
    for seed in range(100):
        *_, last = simulate(seed, effect, kind)
        (interval,) = compared(kind, [last])
        found += interval.high < 0 if effect < 0 else interval.low > 0
    assert found >= 90


def alarms(lost: float, runs: int, share: float = 0.5) -> int:
    shares = np.array([1 - share, share])
    return sum(
        any(
            sample_ratio_mismatch(counts, shares, 0.001)
            for counts, _ in simulate(seed, 0.0, "success", lost, units=20_000)
        )
        for seed in range(runs)
    )


@pytest.mark.no_cover
@pytest.mark.slow
def test_a_sound_split_raises_no_alarm_and_a_broken_one_does() -> None:
    assert alarms(lost=0.0, runs=RUNS) <= 1
    assert alarms(lost=0.0, runs=50, share=0.4) >= 48
    assert alarms(lost=0.2, runs=50) >= 45


def test_an_arm_with_no_share_must_get_nothing() -> None:
    counts = np.zeros((2, BUCKETS))
    counts[0, :200] = 5
    assert not sample_ratio_mismatch(counts, np.array([1.0, 0.0]), 0.001)
    counts[1, 3] = 1
    assert sample_ratio_mismatch(counts, np.array([1.0, 0.0]), 0.001)


def test_nothing_is_said_of_few_requests_or_of_few_units() -> None:
    few = np.zeros(BUCKETS)
    few[:40] = 1
    assert mean(few, few).variance == inf
    one_unit = np.ones(BUCKETS)
    one_unit[0] = 10_000.0
    assert mean(one_unit, one_unit).variance == inf
    assert mean(np.zeros(BUCKETS), np.zeros(BUCKETS)).variance == inf
    assert mean(np.ones(BUCKETS), np.ones(BUCKETS)).variance == 0.0


def rate(failures: int, requests: int, buckets: int = BUCKETS) -> Mean:
    """The success rate of an arm whose requests, of a unit each, fall into these buckets."""
    counts = np.bincount(np.arange(requests) % buckets, minlength=BUCKETS).astype(float)
    return mean(counts, counts - np.bincount(np.arange(failures) % buckets, minlength=BUCKETS))


def test_no_failure_yet_is_no_proof_that_there_are_none() -> None:
    few = rate_difference(rate(0, 100), rate(0, 100), ALPHA)
    assert few.low < -0.05
    assert few.high > 0.05
    many = rate_difference(rate(0, 5000), rate(0, 5000), ALPHA)
    assert -0.002 < many.low < 0 < many.high < 0.002


def test_a_small_arm_without_a_failure_is_not_better() -> None:
    assert (
        rate_difference(rate(99, 9900), rate(0, 100), ALPHA).low
        < 0
        < difference(rate(99, 9900), rate(0, 100), ALPHA).high
    )


def test_a_dead_arm_and_a_dead_control() -> None:
    assert rate_difference(rate(0, 200), rate(200, 200), ALPHA).high < -0.8
    assert rate_difference(rate(200, 200), rate(0, 200), ALPHA).low > 0.8


def test_many_requests_are_compared_as_by_a_normal_distribution() -> None:
    control, other = Mean(0.9, 0.09 / 30_000, 30_000, 500), Mean(0.89, 0.0979 / 30_000, 30_000, 500)
    by_rate, by_mean = rate_difference(control, other, ALPHA), difference(control, other, ALPHA)
    assert tuple(by_rate) == pytest.approx(tuple(by_mean), abs=0.0005)


def test_failures_of_one_unit_count_for_one() -> None:
    counts = np.full(BUCKETS, 4.0)
    sums = counts.copy()
    spread = mean(counts, np.where(np.arange(BUCKETS) < 100, sums - 1, sums))
    counts, sums = counts.copy(), sums.copy()
    counts[0], sums[0] = 104.0, 4.0
    clustered = mean(counts, sums)
    control = rate(0, 2000)
    assert rate_difference(control, spread, ALPHA).high < 0 < rate_difference(control, clustered, ALPHA).high


def test_few_clusters_widen_an_interval() -> None:
    widths = []
    for buckets in (12, 30, 500):
        arm = rate(400, 2000, buckets)
        widths.append(rate_difference(arm, arm, ALPHA).high)
    assert widths[0] > 1.05 * widths[1] > 1.08 * widths[2]
    assert rate_difference(rate(400, 2000, 9), rate(400, 2000, 9), ALPHA).high == inf


def test_values_that_never_varied_bound_the_next_ones_only_by_their_number() -> None:
    same = np.full(BUCKETS, 1.0)
    few, many = mean(same, 5 * same), mean(100 * same, 500 * same)
    assert 0.05 < difference(few, few, ALPHA).high < 0.5
    assert difference(many, many, ALPHA).high < 0.01
    nothing = mean(same, 0 * same)
    assert difference(nothing, nothing, ALPHA).high == inf


def test_strata_are_compared_within_themselves() -> None:
    """Both arms fail in 1 % of requests, later in 20 %, when the other arm gets more of the traffic."""
    counts = np.array([[np.full(BUCKETS, 9.0), np.full(BUCKETS, 5.0)], [np.full(BUCKETS, 1.0), np.full(BUCKETS, 5.0)]])
    sums = counts * np.array([0.99, 0.8])[:, None]
    pooled = [mean(counts[arm].sum(axis=0), sums[arm].sum(axis=0)).value for arm in (0, 1)]
    assert pooled[1] - pooled[0] == pytest.approx(-0.09, abs=0.01)
    weights = strata_weights(*counts.sum(axis=2))
    assert weights.sum() == pytest.approx(1.0)
    combined = [mean(counts[arm], sums[arm], weights).value for arm in (0, 1)]
    assert combined[1] == pytest.approx(combined[0])


def test_a_stratum_that_one_arm_has_not_seen_counts_for_nothing() -> None:
    counts = np.array([np.full(BUCKETS, 4.0), np.zeros(BUCKETS)])
    weights = strata_weights(counts.sum(axis=1), np.array([2000.0, 500.0]))
    assert weights.tolist() == [1.0, 0.0]
    assert mean(counts, counts, weights) == mean(counts[0], counts[0])
    assert strata_weights(np.array([5.0, 0.0]), np.array([0.0, 5.0])).tolist() == [0.0, 0.0]
    assert mean(counts, counts, np.zeros(2)).variance == inf
