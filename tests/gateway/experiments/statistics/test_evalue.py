"""E-values for rates."""

from __future__ import annotations

from math import inf, lgamma

import numpy as np
import pytest

from gateway.experiments.statistics.evalue import excess_failures, fails_more, log_evidence, log_gamma
from gateway.routing.assignment import BUCKETS


def test_log_gamma() -> None:
    places = np.array([1e-3, 0.5, 1.0, 2.0, 7.7, 150.0, 1e6, 1e9])
    assert log_gamma(places) == pytest.approx([lgamma(place) for place in places], rel=1e-10, abs=1e-10)


def test_evidence_is_a_fair_bet() -> None:
    """Under the null hypothesis the expected wealth after any number of observations is 1."""
    total, rate = 12, 0.3
    below = np.arange(total + 1.0)
    chances = np.exp(
        [
            lgamma(total + 1)
            - lgamma(k + 1)
            - lgamma(total - k + 1)
            + k * np.log(rate)
            + (total - k) * np.log(1 - rate)
            for k in below
        ]
    )
    assert chances @ np.exp(log_evidence(below, total, rate, 20.0)) == pytest.approx(1.0)


def requests_until_stopped(source: np.random.Generator, share: float, fails: float, most: int, units: int = 0) -> float:
    """How many requests of the arm until it certainly fails more than 2 % more often; infinite if never.

    The control fails in 1 % of requests. Each request is a unit, or there are `units`, a twentieth of which send half
    of the requests, and whose failure rates differ much.
    """
    votes = np.zeros((2, 2, BUCKETS))
    weights = np.where(np.arange(units) < units // 20, 19.0, 1.0)
    users = source.choice(units, most, p=weights / weights.sum()) if units else np.arange(most)
    arms, buckets = source.random(units or most) < share, source.integers(0, BUCKETS, units or most)
    rates = source.beta(0.1, 9.9, units) if units else np.full(most, 0.01)
    for user in users:
        arm = int(arms[user])
        failed = source.random() < rates[user] + arm * (fails - 0.01)
        votes[arm, 0, buckets[user]] += 1
        votes[arm, 1, buckets[user]] += not failed
        # Evidence grows only with the arm's failures.
        if arm and failed and fails_more(votes[0], votes[1], 0.02, 0.025):
            return float(votes[1, 0].sum())
    return inf


@pytest.mark.parametrize(("fails", "share", "median"), [(1.0, 0.5, 5), (1.0, 0.05, 4), (0.5, 0.05, 8), (0.2, 0.05, 40)])
def test_a_dead_arm_is_found_after_few_of_its_requests(fails: float, share: float, median: float) -> None:
    source = np.random.default_rng(5)
    assert np.median([requests_until_stopped(source, share, fails, 4000) for _ in range(30)]) <= median


@pytest.mark.slow
@pytest.mark.parametrize("units", [0, 60, 1000])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_an_arm_that_fails_as_tolerated_is_kept(share: float, units: int) -> None:
    source = np.random.default_rng(6)
    stopped = sum(requests_until_stopped(source, share, 0.03, 1500, units) < inf for _ in range(40))
    assert stopped <= 0.025 * 40


def test_nothing_is_said_of_no_request() -> None:
    nothing = np.zeros((2, BUCKETS))
    assert excess_failures(nothing, nothing, 0.02) == pytest.approx(0.0, abs=1e-9)


def test_an_arm_cannot_fail_more_than_a_control_that_always_fails() -> None:
    dead = np.array([np.ones(BUCKETS), np.zeros(BUCKETS)])
    assert excess_failures(dead, dead, 0.02) < 0
