"""Anytime-valid statistics: intervals that hold at every look, for means of requests that come in clusters.

Pure arithmetic on arrays. Requests of one unit are alike, so units, grouped in buckets by a hash that knows nothing of
the assignment, are what is independent here: variances come from bucket totals (the delta method, cluster-robust).
Intervals are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central limit
theory, 2021), tightest near `TUNED_FOR` requests.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TUNED_FOR = 5000
FEWEST_CLUSTERS = 30
FEWEST_REQUESTS = 100


class Interval(NamedTuple):
    """An estimate and what it may be; infinite while there is too little to tell."""

    estimate: float
    low: float
    high: float


class Mean(NamedTuple):
    """An arm's mean; `variance` is infinite while too few clusters are known."""

    value: float
    variance: float
    requests: float


def mean(counts: Array, sums: Array) -> Mean:
    """The mean over all requests.

    Args:
        counts: requests by bucket.
        sums: the totals of their values by bucket.
    """
    total = float(counts.sum())
    if not total:
        return Mean(0.0, inf, 0.0)
    value = float(sums.sum()) / total
    clusters = total**2 / float(np.square(counts).sum())  # Kish: a unit that dominates counts for little
    if clusters < FEWEST_CLUSTERS or total < FEWEST_REQUESTS:
        return Mean(value, inf, total)
    seen = int(np.count_nonzero(counts))
    spread = float(np.square(sums - value * counts).sum()) * seen / (seen - 1)
    return Mean(value, spread / total**2, total)


def difference(control: Mean, other: Mean, alpha: float) -> Interval:
    """How much larger the other mean is, with an interval that holds at all times at once but for a share `alpha`."""
    estimate = other.value - control.value
    width = radius(control.variance + other.variance, control.requests + other.requests, alpha)
    return Interval(estimate, estimate - width, estimate + width)


def wrong_split(counts: Array, shares: Array, alpha: float) -> bool:
    """Whether the arms' exposures contradict their shares: something loses or favours requests of an arm.

    Args:
        counts: [arms, buckets] requests.
        shares: [arms], adding up to 1.
        alpha: the chance of a false alarm over all looks.
    """
    per_bucket = counts.sum(axis=0)
    total = float(per_bucket.sum())
    clusters = total**2 / float(np.square(per_bucket).sum()) if total else 0.0
    if clusters < FEWEST_CLUSTERS or total < FEWEST_REQUESTS:
        return False
    if bool((counts[shares == 0].sum(axis=1) > 0).any()):
        return True
    strays = (counts - shares[:, None] * per_bucket)[shares > 0]
    off = np.abs(strays.sum(axis=1)) / total
    variances = np.square(strays).sum(axis=1) / total**2
    return any(
        gap > radius(float(variance), total, alpha / len(strays)) for gap, variance in zip(off, variances, strict=True)
    )


def radius(variance: float, requests: float, alpha: float) -> float:
    """Half the width of a confidence sequence at so many requests, for an estimate of this variance."""
    if variance == inf:
        return inf
    rho2 = (-2 * log(alpha) + log(1 - 2 * log(alpha))) / TUNED_FOR
    time = requests * rho2
    return sqrt(variance * (1 + 1 / time) * log((1 + time) / alpha**2))
