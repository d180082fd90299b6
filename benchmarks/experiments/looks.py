"""What the statistics say of simulated requests, at a look after every observation.

Variances come from the squared residuals of buckets. A bucket's residual changes with every observation, since the mean
does, but the sum of their squares is a quadratic form of a few sums over buckets (of squared counts, squared sums, and
their products), each of which an observation changes by what its own bucket held before. So all looks of an experiment
are cumulative sums over arrays. The last look is checked against the product's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.traffic import Requests
from gateway.experiments.statistics.confidence import (
    FEWEST_CLUSTERS,
    FEWEST_REQUESTS,
    Array,
    Mean,
    deviance,
    difference,
    mean,
    prior_precision,
    rate_difference,
    strata_weights,
)
from gateway.routing.assignment import BUCKETS


class Sides(NamedTuple):
    """The control's and another arm's means, each [2, looks]; see `confidence.Mean`."""

    value: Array
    variance: Array
    requests: Array
    clusters: Array


class Looks(NamedTuple):
    """What is said at each look: [looks]. `excluded(d, alpha)`: whether d is out of the interval."""

    n: Array
    sides: Sides
    excluded: Callable[[float, float], Array]


def look(requests: Requests, other: int, *, rate: bool) -> Looks:
    """Compare an arm with the control after each request of one of them."""
    sides = sides_of(requests, other)
    finite = np.isfinite(sides.variance).all(axis=0)
    if finite[-1]:
        _check(requests, other, sides, rate)
    return Looks(sides.requests.sum(axis=0), sides, partial(_excluded, sides, rate))


def _excluded(sides: Sides, rate: bool, d: float, alpha: float) -> Array:
    value, variance, count, clusters = sides
    n = count.sum(axis=0)
    with np.errstate(all="ignore"):
        if not rate:
            unseen = 2 / (count.min(axis=0) + 4)
            each = np.maximum((variance * count).max(axis=0), unseen) / count
            limit = _boundary(n, alpha, _freedom(each, clusters))
            found: Array = np.square(value[1] - value[0] - d) > each.sum(axis=0) * limit
        else:
            iid = value * (1 - value) / count
            sizes = count / _design_effect(variance, iid, count)
            limit = _boundary(n, alpha, _freedom(1 / sizes, clusters))
            # The evidence is at most twice the chi-squared distance to any pair of rates that differ by d, which is
            # cheaper, so only looks at which that reaches the limit are computed.
            first = (sizes[0] * value[0] + sizes[1] * (value[1] - d)) / sizes.sum(axis=0)
            first = np.clip(first, max(0, -d), min(1, 1 - d))
            near = np.flatnonzero(~(_distance(value, sizes, np.array([first, first + d])) * 2 < limit))
            found = np.zeros(len(n), bool)
            places = np.full(len(near), d)
            exact = deviance(places, (value[0, near], value[1, near]), (sizes[0, near], sizes[1, near]))
            found[near] = exact > limit[near]
    return found & np.isfinite(variance).all(axis=0)


def _design_effect(variance: Array, independent: Array, count: Array) -> Array:
    """`confidence.design_effect`, over looks."""
    seen = independent > 0
    of_difference = (variance * seen).sum(axis=0) / independent.sum(axis=0)
    ratios = np.where(seen, count * variance / independent, 0.0).sum(axis=0) / (count * seen).sum(axis=0)
    found: Array = np.where(seen.any(axis=0), np.maximum(1, np.maximum(of_difference, ratios)), 1.0)
    return found


def _distance(observed: Array, sizes: Array, rates: Array) -> Array:
    """Chi-squared, of rates [2, looks]; infinite where a rate is 0 or 1 and the observed one is not."""
    found: Array = np.where(
        observed == rates, 0.0, sizes * np.square(observed - rates) / np.maximum(rates * (1 - rates), 1e-300)
    ).sum(axis=0)
    return found


def look_as_before(requests: Requests, other: int) -> Looks:
    """The same by the formula of before: each arm has its own variance, from 30 clusters on, and no strata."""
    sides = sides_of(requests._replace(strata=np.zeros_like(requests.strata)), other)
    enough = (sides.clusters >= 30).all(axis=0) & np.isfinite(sides.variance).all(axis=0)
    n, estimate = sides.requests.sum(axis=0), sides.value[1] - sides.value[0]

    def excluded(d: float, alpha: float) -> Array:
        with np.errstate(all="ignore"):
            limit = _boundary(n, alpha, np.full(len(n), np.inf))
            return ((estimate - d) ** 2 > sides.variance.sum(axis=0) * limit) & enough

    return Looks(n, sides, excluded)


def sides_of(requests: Requests, other: int) -> Sides:
    """The means of the control and of another arm after each request of one of them."""
    kept = (requests.arms == 0) | (requests.arms == other)
    strata, buckets, values = requests.strata[kept], requests.buckets[kept], requests.values[kept]
    is_other = requests.arms[kept] == other
    number = int(strata.max()) + 1
    held = [strata == stratum for stratum in range(number)]
    totals = np.array([[np.cumsum(each & side) for each in held] for side in (~is_other, is_other)], dtype=float)
    with np.errstate(all="ignore"):
        common = np.nan_to_num(totals[0] * totals[1] / totals.sum(axis=0))
        weights = np.nan_to_num(common / common.sum(axis=0))
        found = [
            _side(side, held, buckets, values, totals[at], weights) for at, side in enumerate((~is_other, is_other))
        ]
    return Sides(*(np.array(each) for each in zip(*found, strict=True)))


def _side(
    own: Array, held: list[Array], buckets: Array, values: Array, totals: Array, weights: Array
) -> tuple[Array, Array, Array, Array]:
    """Value, variance, requests and clusters of one arm, each [looks].

    Args:
        own: [looks], whether the request is this arm's.
        held: [strata][looks], whether it is the stratum's.
        buckets: [looks].
        values: [looks].
        totals: [strata, looks] requests of this arm.
        weights: [strata, looks].
    """
    at = np.flatnonzero(own)
    bucket, x = buckets[at], values[at]
    inside = [(each[at]).astype(float) for each in held]
    order = np.argsort(bucket.astype(np.uint16), kind="stable")  # by radix, since there are 16 bits
    # What the request's bucket held before it, of each stratum.
    counts = [_before(each, bucket, order) for each in inside]
    sums = [_before(each * x, bucket, order) for each in inside]
    size = len(held)

    def over_time(change: Array) -> Array:
        full = np.zeros(len(own))
        full[at] = change
        return np.cumsum(full)

    means = np.array([over_time(each * x) for each in inside]) / totals
    means = np.nan_to_num(means)
    each = np.nan_to_num(weights / totals)
    squares, variance = np.zeros(len(own)), np.zeros(len(own))
    for one in range(size):
        for two in range(one, size):
            # Sums over buckets of products of two strata; `a`: the request is of the first, `b`: of the second.
            a, b, both = inside[one], inside[two], float(one == two)
            nn = over_time(a * counts[two] + b * counts[one] + both * a)
            ns = over_time(a * sums[two] + b * x * counts[one] + both * a * x)
            sn = ns if one == two else over_time(b * sums[one] + a * x * counts[two])
            ss = over_time(x * (a * sums[two] + b * sums[one]) + both * a * x * x)
            share = each[one] * each[two] * (1 if one == two else 2)
            squares += share * nn
            variance += share * (ss - means[two] * sn - means[one] * ns + means[one] * means[two] * nn)
    first = np.zeros(len(own))
    first[at[np.unique(bucket, return_index=True)[1]]] = 1
    seen = np.cumsum(first)
    value = (weights * means).sum(axis=0)
    count = 1 / np.nan_to_num(weights**2 / totals).sum(axis=0)
    clusters = 1 / squares
    variance = np.maximum(variance, 0) * seen / (seen - 1)
    enough = (clusters >= FEWEST_CLUSTERS) & (count >= FEWEST_REQUESTS) & np.isfinite(count)
    return value, np.where(enough, variance, np.inf), count, clusters


def _before(changes: Array, groups: Array, order: Array) -> Array:
    """The sum of the changes of the same group before each one."""
    sorted_changes, sorted_groups = changes[order], groups[order]
    before = np.cumsum(sorted_changes) - sorted_changes
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=len(groups)))
    found = np.empty(len(groups))
    found[order] = before
    return found


def _check(requests: Requests, other: int, sides: Sides, rate: bool) -> None:
    """Check the last look against the product."""
    shape = (int(requests.strata.max()) + 1, 2, BUCKETS)
    kept = (requests.arms == 0) | (requests.arms == other)
    cell = (requests.strata[kept] * 2 + (requests.arms[kept] == other)) * BUCKETS + requests.buckets[kept]
    counts = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape).astype(float)
    sums = np.bincount(cell, weights=requests.values[kept], minlength=int(np.prod(shape))).reshape(shape)
    totals = counts.sum(axis=2)
    weights = strata_weights(totals[:, 0], totals[:, 1])
    control, arm = (mean(counts[:, side], sums[:, side], weights) for side in (0, 1))
    for found, side in ((control, 0), (arm, 1)):
        assert np.allclose(found, [each[side, -1] for each in sides], rtol=1e-6, atol=1e-12), (found, side)
    alpha = 0.05
    low, high = _bounds(control, arm, alpha, rate)
    last = Sides(*(each[:, -1:] for each in sides))
    near = 1e-3 * (high - low)
    assert not _excluded(last, rate, low + near, alpha)[0]
    assert not _excluded(last, rate, high - near, alpha)[0]
    assert low - near < -1 or _excluded(last, rate, low - near, alpha)[0]
    assert high + near > 1 or _excluded(last, rate, high + near, alpha)[0]


def _bounds(control: Mean, arm: Mean, alpha: float, rate: bool) -> tuple[float, float]:
    found = rate_difference(control, arm, alpha) if rate else difference(control, arm, alpha, 1.0)
    return found.low, found.high


def _freedom(variances: Array, clusters: Array) -> Array:
    found: Array = variances.sum(axis=0) ** 2 / (variances**2 / (clusters - 1)).sum(axis=0)
    return found


def _boundary(requests: Array, alpha: float, freedom: Array) -> Array:
    """`confidence.boundary` over arrays."""
    t = requests / prior_precision(alpha)
    normal = (1 + 1 / t) * np.log((1 + t) / alpha**2)
    student = freedom * np.expm1(np.minimum(normal * ((8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom, 500))
    found: Array = np.where(np.isfinite(freedom), student, normal)
    return found
