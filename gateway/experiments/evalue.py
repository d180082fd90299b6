"""E-values for rates: betting evidence that may be looked at at any time. Pure arithmetic on counts.

An e-value is the wealth of a bettor who starts with 1 and whose expected wealth never grows while the null hypothesis
holds. By Ville's inequality it ever reaches 1 / alpha with a chance of at most alpha. Robbins 1970 (beta mixture);
Howard, Ramdas, McAuliffe, Sekhon: Time-uniform, nonparametric, nonasymptotic confidence sequences, 2021.
"""

from __future__ import annotations

from math import lgamma, log, pi

import numpy as np

from gateway.experiments.confidence import Array


def log_evidence(below: Array, total: float, rate: float, weight: float) -> Array:
    """The logarithm of the evidence against a rate: a beta mixture of alternatives, centered on the rate.

    Args:
        below: counts of events; fractions are allowed.
        total: of how many observations.
        rate: the rate under the null hypothesis, in (0, 1).
        weight: a + b of the beta distribution: how many observations the alternatives are worth. Evidence grows fastest
            at about 8 * `weight` observations.
    """
    a, b = weight * rate, weight * (1 - rate)
    mixed = log_gamma(a + below) + log_gamma(b + total - below)
    against = mixed - lgamma(weight + total) - (lgamma(a) + lgamma(b) - lgamma(weight))
    found: Array = against - below * log(rate) - (total - below) * log(1 - rate)
    return found


def log_gamma(x: Array) -> Array:
    """The logarithm of the gamma function of positive numbers, to 10 digits: numpy has none."""
    # Stirling's series, after seven steps of the recurrence gamma(x) = gamma(x + 1) / x.
    steps = x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6)
    y = x + 7
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * y * y)) / (y * y)) / (y * y)) / y
    found: Array = (y - 0.5) * np.log(y) - y + 0.5 * log(2 * pi) + series - np.log(steps)
    return found
