"""E-values for rates: betting evidence that may be looked at at any time. Pure arithmetic on counts.

An e-value is the wealth of a bettor who starts with 1 and whose expected wealth never grows while the null hypothesis
holds. By Ville's inequality it ever reaches 1 / alpha with a chance of at most alpha. Robbins 1970 (beta mixture);
Howard, Ramdas, McAuliffe, Sekhon: Time-uniform, nonparametric, nonasymptotic confidence sequences, 2021.
"""

from __future__ import annotations

from math import lgamma, log, pi

import numpy as np

from gateway.experiments.statistics.confidence import Array

_LGAMMA = np.frompyfunc(lgamma, 1, 1)


def log_evidence(below: Array, total: Array | float, rate: Array | float, weight: Array | float) -> Array:
    """The logarithm of the evidence against a rate: a beta mixture of alternatives, centered on the rate.

    Arguments broadcast.

    Args:
        below: counts of events; fractions are allowed.
        total: of how many observations.
        rate: the rate under the null hypothesis, in (0, 1).
        weight: a + b of the beta distribution: how many observations the alternatives are worth. Evidence grows fastest
            at about 8 * `weight` observations.
    """
    a, b = weight * rate, weight * (1 - rate)
    mixed = log_gamma(a + below) + log_gamma(b + total - below)
    constant = _LGAMMA(a) + _LGAMMA(b) - _LGAMMA(weight)
    against = mixed - np.asarray(_LGAMMA(weight + total), float) - np.asarray(constant, float)
    found: Array = against - below * np.log(rate) - (total - below) * np.log(1 - rate)
    return found


def log_gamma(x: Array) -> Array:
    """The logarithm of the gamma function of positive numbers, to 10 digits: numpy has none."""
    # Stirling's series, after seven steps of the recurrence gamma(x) = gamma(x + 1) / x.
    steps = x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6)
    y = x + 7
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * y * y)) / (y * y)) / (y * y)) / y
    found: Array = (y - 0.5) * np.log(y) - y + 0.5 * log(2 * pi) + series - np.log(steps)
    return found


# The alternatives that are bet on, as shares of the way from the null hypothesis's rate to 1.
_BETS = np.array([0.02, 0.06, 0.15, 0.3, 0.5, 0.75, 0.99])
# Rates of the control that are considered: dense near 0 and near 1.
_RATES = 1 / (1 + np.exp(-np.linspace(-12, 12, 241)))
# The prior of the control's failure rate is a beta distribution: most controls fail rarely.
_PRIOR = (0.3, 6.0)


def excess_failures(control: Array, other: Array, worse_than: float) -> float:
    """The logarithm of the evidence that an arm fails more than `worse_than` more often than the control.

    The null hypothesis leaves the control's rate open, so the evidence is the least over all rates p of the control:
    the product of a bet that the control's rate is not p, and of a one-sided bet that the arm's rate is above
    p + `worse_than`.

    Requests of one unit are correlated, so each bucket has one vote however many requests it has: its share of
    failures. Assumption: the buckets of an arm are independent draws, so the rates that are compared are means over
    buckets. The evidence is convex in the votes, so it is at most the mean evidence over one drawn request of each
    bucket, which is an e-value.

    Args:
        control: [(count, sum of successes), buckets].
        other: the same of the arm.
        worse_than: the tolerated difference, in [0, 1).
    """
    votes, failed = _votes(control)
    n, k = _votes(other)
    above = _RATES + worse_than
    possible = above < 1
    a, b = _PRIOR
    mixed = lgamma(a + failed) + lgamma(b + votes - failed) - lgamma(a + b + votes)
    against_control = mixed - (lgamma(a) + lgamma(b) - lgamma(a + b))
    evidence = against_control - failed * np.log(_RATES) - (votes - failed) * np.log1p(-_RATES)
    # [bets, rates]. Where p + `worse_than` is 1 or more, no rate of the arm is above it.
    null = above[possible]
    share = _BETS[:, None]
    bets = k * np.log1p(share * (1 - null) / null) + (n - k) * np.log1p(-share)
    most = bets.max(axis=0)
    evidence[possible] += most + np.log(np.exp(bets - most).mean(axis=0))
    return float(evidence.min())


def fails_more(control: Array, other: Array, worse_than: float, alpha: float) -> bool:
    """Whether an arm certainly fails more than `worse_than` more often; wrong at any look with a chance of `alpha`."""
    return excess_failures(control, other, worse_than) >= -log(alpha)


def _votes(successes: Array) -> tuple[float, float]:
    """The number of buckets with requests, and the sum of their shares of failures."""
    counts, sums = successes
    seen = counts > 0
    return float(seen.sum()), float((1 - sums[seen] / counts[seen]).sum())
