"""Anytime-valid statistics: confidence sequences for means of clustered requests.

Pure arithmetic on arrays. Requests of one unit are correlated, so the independent clusters are units, grouped in
buckets by a hash that is independent of the assignment: variances come from bucket totals (delta method,
cluster-robust).
Intervals are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central limit
theory, 2021), valid at every look and tightest near `TUNED_FOR` requests.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Intervals are valid at any size; this only chooses where they are narrowest.
TUNED_FOR = 5000
# The central limit theorem behind the intervals needs some data: below these no interval is given.
FEWEST_CLUSTERS = 30
FEWEST_REQUESTS = 100


class Interval(NamedTuple):
    """An estimate with its bounds; infinite while there are too few requests."""

    estimate: float
    low: float
    high: float


class Mean(NamedTuple):
    """An arm's mean; `variance` (of the mean) is infinite while there are too few clusters."""

    value: float
    variance: float
    requests: float


def mean(counts: Array, sums: Array) -> Mean:
    """The mean over all requests.

    Args:
        counts: [buckets] requests.
        sums: [buckets] totals of their values.
    """
    total = float(counts.sum())
    if not total:
        return Mean(0.0, inf, 0.0)
    value = float(sums.sum()) / total
    clusters = total**2 / float(np.square(counts).sum())  # Kish's effective sample size
    if clusters < FEWEST_CLUSTERS or total < FEWEST_REQUESTS:
        return Mean(value, inf, total)
    # Buckets with requests. Kish's size is at most that (Cauchy-Schwarz), so `seen` is at least 30.
    seen = int(np.count_nonzero(counts))
    # The mean is a ratio of bucket totals, since buckets differ in size: its residual in a bucket is the sum less what
    # the mean predicts (delta method). seen / (seen - 1) corrects for the estimated mean.
    spread = float(np.square(sums - value * counts).sum()) * seen / (seen - 1)
    return Mean(value, spread / total**2, total)


def difference(control: Mean, other: Mean, alpha: float) -> Interval:
    """How much larger the other mean is; the interval misses the truth at any look with a chance of at most `alpha`."""
    estimate = other.value - control.value
    # Arms have no unit in common, so the variances add up.
    width = radius(control.variance + other.variance, control.requests + other.requests, alpha)
    return Interval(estimate, estimate - width, estimate + width)


def sample_ratio_mismatch(counts: Array, shares: Array, alpha: float) -> bool:
    """Whether the arms' exposures contradict their shares (SRM): requests of an arm are lost or favoured somewhere.

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
    # An arm without a share cannot be assigned: a single exposure is proof, no test needed.
    if bool((counts[shares == 0].sum(axis=1) > 0).any()):
        return True
    # Observed less expected exposures, per arm and bucket. A bucket with one busy unit strays far and raises the
    # variance, too: clusters, not requests, are the independent draws.
    strays = (counts - shares[:, None] * per_bucket)[shares > 0]
    off = np.abs(strays.sum(axis=1)) / total
    variances = np.square(strays).sum(axis=1) / total**2
    return any(  # Bonferroni over the arms
        gap > radius(float(variance), total, alpha / len(strays)) for gap, variance in zip(off, variances, strict=True)
    )


def radius(variance: float, requests: float, alpha: float) -> float:
    """Half the width of the confidence sequence after `requests` requests, for an estimate of this variance."""
    if variance == inf:
        return inf
    time = requests / prior_precision(alpha)
    # The paper's boundary for a mean, with the variance of the mean in place of sigma^2 / t.
    return sqrt(variance * (1 + 1 / time) * log((1 + time) / alpha**2))


def prior_precision(alpha: float) -> float:
    """How many requests the mixture over possible effects is worth: 1 / rho^2 in the paper, which minimizes the width
    at `TUNED_FOR` requests in its closed-form approximation.
    """
    return TUNED_FOR / (-2 * log(alpha) + log(1 - 2 * log(alpha)))
