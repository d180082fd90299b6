"""One simulated experiment of two arms or more: its traffic, and what the statistics say at many looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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

Draw = Callable[[np.random.Generator, Array, Array, Array], Array]
"""Values of requests, by a random generator, arms, times in [0, 1), and the units' own normal deviates."""


@dataclass(frozen=True)
class Traffic:
    """How requests come.

    Attributes:
        requests: of all arms together.
        shares: the arms' shares, one row for each split; splits follow each other in equal times.
        units: 0: every request is a unit; else so many, of which 5 % send half of the requests.
    """

    requests: int = 40_000
    shares: tuple[tuple[float, ...], ...] = ((0.5, 0.5),)
    units: int = 0


class Requests(NamedTuple):
    """Requests in their order."""

    strata: Array
    arms: Array
    buckets: Array
    values: Array


def draw(source: np.random.Generator, traffic: Traffic, values: Draw) -> Requests:
    """Simulate the requests of one experiment."""
    n = traffic.requests
    units = traffic.units or n
    place, bucket, own = source.random(units), source.integers(0, BUCKETS, units), source.standard_normal(units)
    if traffic.units:
        busy = max(1, units // 20)
        weights = np.where(np.arange(units) < busy, (units - busy) / busy, 1.0)
        unit = np.searchsorted(np.cumsum(weights) / weights.sum(), source.random(n))
        place, bucket, own = place[unit], bucket[unit], own[unit]
    when = np.arange(n) / n
    strata = (when * len(traffic.shares)).astype(int)
    # A unit keeps its place, so a changed split moves the fewest units. The last arms get the lowest places.
    ends = np.cumsum(np.array(traffic.shares)[:, ::-1], axis=1)[:, :-1]
    arms = (place[:, None] >= ends[strata]).sum(axis=1)
    arms = len(traffic.shares[0]) - 1 - arms
    return Requests(strata, arms, bucket, values(source, arms, when, own))


class Sides(NamedTuple):
    """The control's and another arm's means, each [looks, 2]; see `confidence.Mean`."""

    value: Array
    variance: Array
    requests: Array
    clusters: Array


class Looks(NamedTuple):
    """What is said at each look: [looks]. `n`: requests until then; `excluded(d)`: whether d is out of the interval."""

    n: Array
    sides: Sides
    excluded: Callable[[float], Array]


def look_times(requests: int, looks: int, first: int = FEWEST_REQUESTS) -> Array:
    """After how many requests somebody looks: log-spaced."""
    return np.unique(np.geomspace(first, requests, looks).astype(int))


def look(requests: Requests, other: int, alpha: float, times: Array, *, rate: bool) -> Looks:
    """Compare an arm with the control at these times."""
    sides = _sides(requests, other, times, check=True)
    n = sides.requests.sum(axis=1)
    few = ~np.isfinite(sides.variance).all(axis=1)
    value, variance, count, clusters = sides
    with np.errstate(all="ignore"):
        if rate:
            iid = value * (1 - value) / count
            effect = np.maximum(1, np.where(iid > 0, variance / iid, 1.0).max(axis=1))
            sizes = count / effect[:, None]
            limit = _boundary(n, alpha, _freedom(1 / sizes, clusters))
            estimate = value[:, 1] - value[:, 0]

            def excluded(d: float) -> Array:
                with np.errstate(invalid="ignore"):
                    found = deviance(np.full(len(n), d), (value[:, 0], value[:, 1]), (sizes[:, 0], sizes[:, 1]))
                    return (found > limit) & ~few
        else:
            unseen = 2 / (count.min(axis=1) + 4)
            each = np.maximum((variance * count).max(axis=1), unseen)[:, None] / count
            limit = _boundary(n, alpha, _freedom(each, clusters))
            estimate = value[:, 1] - value[:, 0]

            def excluded(d: float) -> Array:
                with np.errstate(invalid="ignore"):
                    return ((estimate - d) ** 2 > each.sum(axis=1) * limit) & ~few

    if not few[-1]:
        _check(sides, rate, alpha, excluded)
    return Looks(times, sides, excluded)


def _check(sides: Sides, rate: bool, alpha: float, excluded: Callable[[float], Array]) -> None:
    """Check the last look against the product."""
    control, other = (Mean(*(float(each[-1, arm]) for each in sides)) for arm in (0, 1))
    found = rate_difference(control, other, alpha) if rate else difference(control, other, alpha, 1.0)
    near = 1e-3 * (found.high - found.low)
    assert not excluded(found.low + near)[-1]
    assert not excluded(found.high - near)[-1]
    assert excluded(found.low - near)[-1] or found.low - near < -1
    assert excluded(found.high + near)[-1] or found.high + near > 1


def look_as_before(requests: Requests, other: int, alpha: float, times: Array) -> Looks:
    """The same by the formula of before: each arm has its own variance, from 30 clusters on."""
    sides = _sides(requests._replace(strata=np.zeros_like(requests.strata)), other, times, check=False)
    enough = (sides.clusters >= 30).all(axis=1) & np.isfinite(sides.variance).all(axis=1)
    limit = _boundary(sides.requests.sum(axis=1), alpha, np.full(len(times), np.inf))
    estimate = sides.value[:, 1] - sides.value[:, 0]

    def excluded(d: float) -> Array:
        with np.errstate(invalid="ignore"):
            return ((estimate - d) ** 2 > sides.variance.sum(axis=1) * limit) & enough

    return Looks(times, sides, excluded)


def _sides(requests: Requests, other: int, times: Array, *, check: bool) -> Sides:
    strata = int(requests.strata.max()) + 1
    kept = (requests.arms == 0) | (requests.arms == other)
    at = np.searchsorted(times, np.flatnonzero(kept), side="right")  # a request is seen by the looks after it
    side = (requests.arms[kept] == other).astype(int)
    cell = ((at * strata + requests.strata[kept]) * 2 + side) * BUCKETS + requests.buckets[kept]
    shape = (len(times) + 1, strata, 2, BUCKETS)
    size = int(np.prod(shape))
    counts = np.bincount(cell, minlength=size).reshape(shape).cumsum(axis=0)[:-1].astype(float)
    sums = np.bincount(cell, weights=requests.values[kept], minlength=size).reshape(shape).cumsum(axis=0)[:-1]
    totals = counts.sum(axis=3)
    with np.errstate(all="ignore"):
        common = np.nan_to_num(totals[..., 0] * totals[..., 1] / totals.sum(axis=2))
        weights = np.nan_to_num(common / common.sum(axis=1, keepdims=True))[..., None]
        means = np.nan_to_num(sums.sum(axis=3) / totals)
        count = 1 / np.nan_to_num(weights**2 / totals).sum(axis=1)
        each = np.nan_to_num(weights / totals)[..., None]
        value = (weights * means).sum(axis=1)
        shares = (each * counts).sum(axis=1)
        clusters = 1 / (shares**2).sum(axis=2)
        residuals = (each * (sums - means[..., None] * counts)).sum(axis=1)
        seen = np.count_nonzero(shares, axis=2)
        variance = (residuals**2).sum(axis=2) * seen / (seen - 1)
    enough = (clusters >= FEWEST_CLUSTERS) & (count >= FEWEST_REQUESTS) & np.isfinite(count)
    variance[~enough] = np.inf
    if check and np.isfinite(count[-1]).all():
        by_product = strata_weights(totals[-1, :, 0], totals[-1, :, 1])
        for arm in (0, 1):
            found = mean(counts[-1, :, arm], sums[-1, :, arm], by_product)
            ours = value[-1, arm], variance[-1, arm], count[-1, arm], clusters[-1, arm]
            assert np.allclose(found, ours), (found, ours)
    return Sides(value, variance, count, clusters)


def _freedom(variances: Array, clusters: Array) -> Array:
    return variances.sum(axis=1) ** 2 / (variances**2 / (clusters - 1)).sum(axis=1)


def _boundary(requests: Array, alpha: float, freedom: Array) -> Array:
    with np.errstate(all="ignore"):
        t = requests / prior_precision(alpha)
        normal = (1 + 1 / t) * np.log((1 + t) / alpha**2)
        student = freedom * np.expm1(np.minimum(normal * ((8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom, 500))
        found: Array = np.where(np.isfinite(freedom), student, normal)
    return found
