"""Anytime-valid bounds for the mean of values between 0 and 1, from counts and sums alone.

A beta mixture of likelihood ratios (Robbins, 1970) is a martingale for zeros and ones. It is a supermartingale for any
values in [0, 1], because a likelihood ratio is convex in the value. By Ville's inequality it stays below 1 / alpha at
all looks, with a probability of 1 - alpha. Nothing asymptotic is in it: it also bounds a mean of values that are all 1.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, lgamma, log, nan

import numpy as np

from gateway.experiments.statistics.confidence import FEWEST_CLUSTERS, Array, Interval, mean, radius

_PRIOR = 0.5
"""Both parameters of the mixture's beta distribution: 1/2 is narrowest near 0 and 1, where agreement is."""
_STEPS = 60
"""Halvings of [0, 1] that find a bound: more than a double can tell apart."""


def bounded_mean(counts: Array, sums: Array, alpha: float) -> Interval:
    """A mean of values in [0, 1] with its bounds, which are in [0, 1], too.

    Values of one unit are correlated. From 30 units on, the bounds are not narrower than those of the cluster-robust
    sequence; below, a unit counts as one value.

    Args:
        counts: [buckets] values.
        sums: [buckets] of the values.
        alpha: the chance that the interval ever misses the mean.
    """
    total = float(counts.sum())
    if not total:
        return Interval(nan, -inf, inf)
    estimate = min(1.0, max(0.0, float(sums.sum()) / total))
    clusters = total**2 / float(np.square(counts).sum())
    low, high = exact_bounds(estimate, total if clusters >= FEWEST_CLUSTERS else clusters, alpha)
    found = mean(counts, sums)
    # Infinite while there are too few values for the central limit theorem: then the exact bounds stand alone.
    if (width := radius(found.variance, found.requests, alpha)) < inf:
        low, high = max(0.0, min(low, estimate - width)), min(1.0, max(high, estimate + width))
    return Interval(estimate, low, high)


def exact_bounds(estimate: float, count: float, alpha: float) -> tuple[float, float]:
    """The lowest and the highest mean that `count` values of this mean do not rule out."""
    ones, zeros = estimate * count, (1 - estimate) * count
    mixture = (
        lgamma(_PRIOR + ones) + lgamma(_PRIOR + zeros) - lgamma(2 * _PRIOR + count) - 2 * lgamma(_PRIOR) + lgamma(1.0)
    )

    def possible(value: float) -> bool:
        against = (ones * log(value) if ones else 0.0) + (zeros * log(1 - value) if zeros else 0.0)
        return mixture - against < -log(alpha)

    # The evidence against a value grows with its distance from the estimate, on either side.
    low = 0.0 if not ones else _edge(estimate, 0.0, possible)
    high = 1.0 if not zeros else _edge(estimate, 1.0, possible)
    return low, high


def _edge(inside: float, outside: float, possible: Callable[[float], bool]) -> float:
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if possible(middle) else (inside, middle)
    return outside
