"""Simulated requests: who sends them, to which arm they are assigned, and what they end with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gateway.experiments.statistics.confidence import Array
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


def successes(
    control: float, other: float | None = None, spread: float = 0.0, level: Callable[[Array], Array] | None = None
) -> Draw:
    """Zeros and ones. `spread`: of the units' failure rates; `level`: what the failure rate is multiplied by."""

    def values(source: np.random.Generator, arms: Array, when: Array, own: Array) -> Array:
        fails = np.where(arms > 0, 1 - (control if other is None else other), 1 - control)
        if spread:
            fails = fails * np.exp(spread * own - spread**2 / 2)
        if level is not None:
            fails = fails * level(when)
        return (source.random(len(arms)) >= fails).astype(float)

    return values


def lognormal(sigma: float, longer: float = 0.0, level: Callable[[Array], Array] | None = None) -> Draw:
    """Seconds; half of the variance is the units'."""

    def values(source: np.random.Generator, arms: Array, when: Array, own: Array) -> Array:
        found = np.exp(sigma * np.sqrt(0.5) * (source.standard_normal(len(arms)) + own)) * np.where(
            arms > 0, 1 + longer, 1
        )
        return found if level is None else found * level(when)

    return values


def as_control(values: Draw) -> Draw:
    """The same values for all arms: the control's."""
    return lambda source, arms, when, own: values(source, np.zeros_like(arms), when, own)


def pareto(shape: float) -> Draw:
    """Seconds with a heavy tail, of at least 1."""
    return lambda source, arms, _when, _own: 1 + source.pareto(shape, len(arms))


def time_outs(chance: float, factor: float, more: float = 0.0) -> Draw:
    """Lognormal seconds, of which some are `factor` times as long; the other arm has `more` of them."""

    def values(source: np.random.Generator, arms: Array, _when: Array, _own: Array) -> Array:
        hit = source.random(len(arms)) < chance * np.where(arms > 0, 1 + more, 1)
        return source.lognormal(0, 0.5, len(arms)) * np.where(hit, factor, 1.0)

    return values


def diurnal(when: Array) -> Array:
    """Four days, with a peak of 1.8 times the mean."""
    return 1 + 0.8 * np.sin(8 * np.pi * when)


def drift(when: Array) -> Array:
    """From once to fourfold."""
    return 1 + 3 * when


def outage(when: Array) -> Array:
    """Fifty times as much for a twentieth of the time."""
    return np.where((when > 0.3) & (when < 0.35), 50.0, 1.0)
