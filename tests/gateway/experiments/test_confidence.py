"""The statistics by simulation: units of unlike behaviour come back many times, and somebody looks all the time."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
import pytest

from gateway.experiments.confidence import Array, difference, mean, sample_ratio_mismatch
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


def misses(kind: str, effect: float) -> float:
    """The share of runs in which the interval misses the truth at any look."""
    missed = 0
    for seed in range(RUNS):
        for counts, sums in simulate(seed, effect, kind):
            found = difference(mean(counts[0], sums[0]), mean(counts[1], sums[1]), ALPHA)
            if not found.low <= effect * TRUTH[kind] <= found.high:
                missed += 1
                break
    return missed / RUNS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["success", "seconds"])
def test_two_equal_arms_raise_an_alarm_in_at_most_one_run_of_twenty(kind: str) -> None:
    assert misses(kind, 0.0) <= ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "effect"), [("success", -0.1), ("seconds", 0.3)])
def test_intervals_cover_the_truth_at_all_looks_together(kind: str, effect: float) -> None:
    assert misses(kind, effect) <= ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "effect"), [("success", -0.12), ("seconds", 0.5)])
def test_a_stated_effect_is_found(kind: str, effect: float) -> None:
    found = 0
    for seed in range(100):
        *_, (counts, sums) = simulate(seed, effect, kind)
        interval = difference(mean(counts[0], sums[0]), mean(counts[1], sums[1]), ALPHA)
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
