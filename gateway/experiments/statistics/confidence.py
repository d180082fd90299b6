"""Anytime-valid statistics: confidence sequences for means and rates of clustered requests.

Pure arithmetic on arrays. Requests of one unit are correlated, so the independent clusters are units, grouped in
buckets by a hash that is independent of the assignment: variances come from bucket totals (delta method,
cluster-robust).

Intervals are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central limit
theory, 2021), valid at every look and tightest near `TUNED_FOR` requests. Three corrections make them hold where few
events or few clusters have been seen:

- Both arms get the larger variance per request, and at least that of two unusual values among all. The variance of a
  small arm is correlated with its mean, and one that has not seen a rare value yet would be too sure.
- Rates are compared by their likelihood, not by a variance: an arm without a failure is no proof of a rate of 0.
- Few clusters widen the intervals as Student's t distribution does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Intervals are valid at any size; this only chooses where they are narrowest.
TUNED_FOR = 5000
# The central limit theorem behind the intervals needs some data: below these no interval is given.
FEWEST_CLUSTERS = 10
FEWEST_REQUESTS = 100

_TINY = 1e-300


class Interval(NamedTuple):
    """An estimate with its bounds; infinite while there are too few requests."""

    estimate: float
    low: float
    high: float


class Mean(NamedTuple):
    """An arm's mean.

    Attributes:
        value: the mean.
        variance: of the mean; infinite while there are too few clusters or requests.
        requests: how many, or the equivalent number of a single stratum.
        clusters: how many buckets of equal size would be worth as much (Kish's effective sample size).
    """

    value: float
    variance: float
    requests: float
    clusters: float = 0.0


def mean(counts: Array, sums: Array, weights: Array | None = None) -> Mean:
    """The mean over all requests, or the weighted mean of the means of strata.

    Args:
        counts: [buckets] or [strata, buckets] requests.
        sums: the totals of their values, in the same shape.
        weights: [strata], adding up to 1; None for one stratum. Requests of a stratum without weight do not count.
    """
    rows = np.stack((np.atleast_2d(counts), np.atleast_2d(sums)), axis=1)[:, None]
    return means_of(rows, None if weights is None else weights[:, None])[0]


def means_of(rows: Array, weights: Array | None = None) -> list[Mean]:
    """The `mean` of each of several rows, which costs hardly more than of one.

    Args:
        rows: [strata, rows, (count, sum), buckets].
        weights: [strata, rows].
    """
    counts, sums = rows[:, :, 0], rows[:, :, 1]
    totals, values = counts.sum(axis=2), sums.sum(axis=2)
    used = totals > 0 if weights is None else (weights > 0) & (totals > 0)
    totals = np.where(used, totals, 1.0)
    weights = np.where(used, 1.0 if weights is None else weights, 0.0)
    means, each = values / totals, weights / totals  # `each`: the weight of one request
    shares = (each[:, :, None] * counts).sum(axis=0)
    # A stratum's mean is a ratio of bucket totals, since buckets differ in size: its residual in a bucket is the sum
    # less what the mean predicts (delta method). A unit keeps its bucket in all strata, so residuals add up by bucket.
    residuals = (each[:, :, None] * (sums - means[:, :, None] * counts)).sum(axis=0)
    found = zip(
        (weights * means).sum(axis=0).tolist(),
        np.square(residuals).sum(axis=1).tolist(),
        (weights * each).sum(axis=0).tolist(),
        np.square(shares).sum(axis=1).tolist(),
        np.count_nonzero(shares, axis=1).tolist(),
        strict=True,
    )
    return [_mean(*row) for row in found]


def _mean(value: float, residuals: float, per_request: float, squares: float, seen: int) -> Mean:
    """A mean from sums over buckets: of the squared residuals, of the squared shares; and the buckets with requests."""
    if not per_request:
        return Mean(0.0, inf, 0.0)
    requests, clusters = 1 / per_request, 1 / squares
    if clusters < FEWEST_CLUSTERS or requests < FEWEST_REQUESTS:
        return Mean(value, inf, requests, clusters)
    # Kish's size is at most the number of buckets with requests (Cauchy-Schwarz), so `seen` is at least 10.
    # seen / (seen - 1) corrects for the estimated mean.
    return Mean(value, residuals * seen / (seen - 1), requests, clusters)


def strata_weights(control: Array, other: Array) -> Array:
    """The weights of strata by which the means of two arms are compared: [strata, ...], adding up to 1.

    A stratum is a time in which the split was the same. Means over all times would compare the traffic of different
    times if the split was changed in between. These weights are those of the least variance for equal variances per
    request; they do not depend on outcomes.

    Args:
        control: [strata, ...] requests of the control.
        other: [strata, ...] requests of the other arm.
    """
    both = control + other
    common = np.divide(control * other, both, out=np.zeros(both.shape), where=both > 0)
    total = common.sum(axis=0)
    weights: Array = np.divide(common, total, out=common, where=total > 0)
    return weights


def difference(control: Mean, other: Mean, alpha: float, scale: float | None = None) -> Interval:
    """How much larger the other mean is; the interval misses the truth at any look with a chance of at most `alpha`.

    Args:
        control: the control's mean.
        other: another arm's.
        alpha: the chance of a miss.
        scale: how far from the mean a value may well be that has not been seen yet; None: as far as the mean is from 0.
    """
    estimate = other.value - control.value
    per_request = variance_per_request(control, other, scale)
    # All values are 0 so far, which does not bound the next ones.
    if per_request in (0, inf):
        return Interval(estimate, -inf, inf)
    # Arms have no unit in common, so the variances add up.
    variances = per_request / control.requests, per_request / other.requests
    freedom = _freedom(variances, (control.clusters, other.clusters))
    width = radius(sum(variances), control.requests + other.requests, alpha, freedom)
    return Interval(estimate, estimate - width, estimate + width)


def variance_per_request(control: Mean, other: Mean, scale: float | None = None) -> float:
    """The variance of one value, for both arms: the larger of theirs, and at least that of two values of n + 4 that are
    off by `scale`, as in `difference`.
    """
    if inf in (control.variance, other.variance):
        return inf
    if scale is None:
        scale = max(abs(control.value), abs(other.value))
    unseen = 2 * scale**2 / (min(control.requests, other.requests) + 4)
    return max(control.variance * control.requests, other.variance * other.requests, unseen)


def rate_difference(control: Mean, other: Mean, alpha: float) -> Interval:
    """The same as `difference` for rates (values 0 and 1): all differences that the likelihood does not exclude."""
    return rate_differences([(control, other, alpha)])[0]


def rate_differences(asked: Sequence[tuple[Mean, Mean, float]]) -> list[Interval]:
    """`rate_difference` of several pairs at once, which costs hardly more than of one."""
    found = [Interval(other.value - control.value, -inf, inf) for control, other, _ in asked]
    known = [at for at, (control, other, _) in enumerate(asked) if inf not in (control.variance, other.variance)]
    if not known:
        return found
    rates, sizes, limits = (np.array(each).T for each in zip(*(_evidence_of(*asked[at]) for at in known), strict=True))
    # Both bounds lie between the estimate and an end of the possible differences, where the evidence reaches the limit.
    # Each round narrows both down by 47.
    inside = np.tile(rates[1] - rates[0], (2, 1))
    outside = np.repeat([[-1.0], [1.0]], len(known), axis=1)
    for _ in range(4):
        places = np.linspace(inside, outside, 48)  # [places, (low, high), pairs]
        excluded = deviance(places, (rates[0], rates[1]), (sizes[0], sizes[1])) > limits
        excluded[0] = False
        first = np.where(excluded.any(axis=0), excluded.argmax(axis=0), 47)[None]
        inside, outside = (np.take_along_axis(places, each, axis=0)[0] for each in (first - 1, first))
    for at, low, high in zip(known, *outside.tolist(), strict=True):
        found[at] = found[at]._replace(low=low, high=high)
    return found


def _evidence_of(control: Mean, other: Mean, alpha: float) -> tuple[tuple[float, float], tuple[float, float], float]:
    """The observed rates, the numbers of independent requests behind them, and the limit of the evidence."""
    effect = design_effect(control, other)
    sizes = control.requests / effect, other.requests / effect
    freedom = _freedom((1 / sizes[0], 1 / sizes[1]), (control.clusters, other.clusters))
    return (control.value, other.value), sizes, boundary(control.requests + other.requests, alpha, freedom)


def design_effect(control: Mean, other: Mean) -> float:
    """How many requests are worth one independent request, for rates: the larger of both arms, and at least 1."""
    found = [
        arm.variance * arm.requests / (arm.value * (1 - arm.value)) for arm in (control, other) if 0 < arm.value < 1
    ]
    return max([1.0, *found])


def deviance(
    differences: Array, rates: tuple[Array | float, Array | float], sizes: tuple[Array | float, Array | float]
) -> Array:
    """Twice the log likelihood ratio of two observed rates against a given difference of the true ones.

    The control's true rate is not given: it is the most likely one (Miettinen and Nurminen: Comparative analysis of two
    rates, 1985, closed form). Arguments broadcast.

    Args:
        differences: of the other arm's rate to the control's.
        rates: observed, of the control and of the other arm.
        sizes: the numbers of independent requests behind them.
    """
    observed, other = rates
    ratio = sizes[0] / sizes[1]
    # The cubic equation of the other arm's most likely rate.
    a = 1 + ratio
    b = -(1 + ratio + other + ratio * observed + differences * (ratio + 2))
    c = differences**2 + differences * (2 * other + ratio + 1) + other + ratio * observed
    d = -other * differences * (1 + differences)
    third = b / (3 * a)
    v = third**3 - b * c / (6 * a * a) + d / (2 * a)
    u = np.sqrt(np.maximum(third**2 - c / (3 * a), 1e-60)) * np.where(v < 0, -1.0, 1.0)
    angle = (np.pi + np.arccos(np.clip(v / u**3, -1, 1))) / 3
    fitted = np.clip(2 * u * np.cos(angle) - third, np.maximum(0, differences), np.minimum(1, 1 + differences))
    return sizes[0] * _relative_entropy(observed, fitted - differences) + sizes[1] * _relative_entropy(other, fitted)


def _relative_entropy(observed: Array | float, rate: Array) -> Array:
    """Twice the Kullback-Leibler divergence of a rate from an observed one."""
    hit = observed * (np.log(np.maximum(observed, _TINY)) - np.log(np.maximum(rate, _TINY)))
    miss = (1 - observed) * (np.log(np.maximum(1 - observed, _TINY)) - np.log(np.maximum(1 - rate, _TINY)))
    found: Array = 2 * (hit + miss)
    return found


def sample_ratio_mismatch(counts: Array, shares: Array, alpha: float) -> bool:
    """Whether the arms' requests contradict their shares (SRM): requests of an arm are lost or favoured somewhere.

    The assignment is random by design, so the variance is known but for the sizes of units. A hash that is independent
    of the assignment puts units into buckets, so the variance of the buckets' sizes is the sum of the squared sizes of
    units: one busy unit makes one bucket large.

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
    effect = max(1.0, float(per_bucket.var(ddof=1)) * len(per_bucket) / total)
    tested = (shares > 0) & (shares < 1)
    limit = boundary(total, alpha / max(1, tested.sum()), clusters - 1)  # Bonferroni over the arms
    found = counts[tested].sum(axis=1) / total
    return bool((total / effect * _relative_entropy(found, shares[tested]) > limit).any())


def radius(variance: float, requests: float, alpha: float, freedom: float = inf) -> float:
    """Half the width of the confidence sequence after `requests` requests, for an estimate of this variance.

    Args:
        variance: of the estimate.
        requests: how many.
        alpha: the chance that the interval ever misses.
        freedom: the degrees of freedom of the variance.
    """
    return inf if variance == inf else sqrt(variance * boundary(requests, alpha, freedom))


def boundary(requests: float, alpha: float, freedom: float = inf) -> float:
    """The squared number of standard errors that an estimate exceeds at any look with a chance of at most `alpha`."""
    time = requests / prior_precision(alpha)
    # The paper's boundary for a mean, with the variance of the mean in place of sigma^2 / t.
    normal = (1 + 1 / time) * log((1 + time) / alpha**2)
    if freedom == inf:
        return normal
    # The same quantile of Student's t distribution (Wallace: Bounds on normal approximations to Student's, 1959).
    exponent = normal * ((8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom
    return freedom * (exp(exponent) - 1) if exponent < 500 else inf


def prior_precision(alpha: float) -> float:
    """How many requests the mixture over possible effects is worth: 1 / rho^2 in the paper, which minimizes the width
    at `TUNED_FOR` requests in its closed-form approximation.
    """
    return TUNED_FOR / (-2 * log(alpha) + log(1 - 2 * log(alpha)))


def _freedom(variances: tuple[float, float], clusters: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of two estimated variances (Welch and Satterthwaite)."""
    return sum(variances) ** 2 / sum(
        variance**2 / (number - 1) for variance, number in zip(variances, clusters, strict=True)
    )
