"""One arm against the control by one metric: the interval, the decision, and why there is none yet. Pure arithmetic.

Each metric has a part of alpha, so that the chance of any false word in a report is at most alpha (Bonferroni with
weights, which needs no assumption on how metrics depend on each other). The primary metrics, which decide the verdict,
have most of it. A step-down procedure that hands on the alpha of decided metrics would find a little more, but its
words would contradict the intervals beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import exp, expm1, inf, log1p
from typing import Literal

import msgspec

from gateway.experiments.metrics import QUANTILES, TIMES, Metric
from gateway.experiments.statistics.confidence import (
    FEWEST_CLUSTERS,
    FEWEST_REQUESTS,
    Array,
    Interval,
    Mean,
    difference,
    means_of,
    rate_differences,
    strata_weights,
)
from gateway.experiments.statistics.histogram import Asked, log_design_effect, quantile_ratios, weighted
from gateway.experiments.statistics.power import requests_needed

Decision = Literal["better", "worse", "higher", "lower", "no difference", "keep collecting"]

_PRIMARY, _DIRECTED, _REST = 0.6, 0.35, 0.05
"""Of alpha: for the primary metrics, for the others that can be better or worse, and for those that can only be higher
or lower. The metrics of a group share it equally.
"""

_OVERFLOW = 700
"""Above it, `exp` overflows."""


class Comparison(msgspec.Struct, frozen=True):
    """One arm against the control by one metric. Bounds are null while there are too few requests.

    Attributes:
        difference: of the means, with its bounds; of the geometric means for times, in seconds. Splits that changed are
            compared each by itself and combined, so it may differ from the difference of the arms' means.
        relative: the difference as a share of the control's mean, with its bounds. For times the bounds are those of
            the ratio itself; for others they take the control's mean as it was measured. Null if that mean is 0.
        alpha: the chance that the interval ever misses the truth.
        control_requests: behind the control's mean; over several splits, the equivalent number of one.
        requests: behind the arm's mean.
        reason: why the decision is "keep collecting"; else "".
        requests_needed: about how many more requests of both arms decide, if the estimate stays; null: not known, or
            decided.
    """

    arm: str
    metric: str
    difference: float
    low: float
    high: float
    decision: Decision
    relative: float | None = None
    relative_low: float | None = None
    relative_high: float | None = None
    alpha: float = 0.0
    control_requests: int = 0
    requests: int = 0
    reason: str = ""
    requests_needed: int | None = None


class QuantileRatio(msgspec.Struct, frozen=True):
    """A quantile of an arm's times, divided by the control's. Bounds are null while there are too few requests."""

    arm: str
    metric: str
    quantile: str
    ratio: float
    low: float
    high: float


def metric_alphas(metrics: Sequence[Metric], primary: Collection[str], alpha: float) -> dict[str, float]:
    """The part of alpha that each metric has; `primary` are the names of those that decide."""
    directed = [metric.name for metric in metrics if metric.better is not None]
    groups = (
        (_PRIMARY, [name for name in directed if name in primary]),
        (_DIRECTED, [name for name in directed if name not in primary]),
        (_REST, [metric.name for metric in metrics if metric.better is None]),
    )
    return {name: share * alpha / len(names) for share, names in groups for name in names}


def means(rows: Array, arm: int, row: int) -> tuple[Mean, Mean]:
    """The means of the control and of an arm, each weighted alike over the splits in which both have requests.

    Args:
        rows: [splits, arms, rows, (count, sum), buckets].
        arm: the arm's index.
        row: what is averaged.
    """
    return means_of_rows(rows[:, :, row : row + 1], arm)[0]


def means_of_rows(rows: Array, arm: int) -> list[tuple[Mean, Mean]]:
    """`means` of all rows."""
    control, other = rows[:, 0], rows[:, arm]
    weights = strata_weights(control[:, :, 0].sum(axis=2), other[:, :, 0].sum(axis=2))
    return [*zip(means_of(control, weights), means_of(other, weights), strict=True)]


def row_of(metrics: Sequence[Metric], metric: Metric) -> int:
    """The row of the counters by whose mean arms are compared: of a time, that of its logarithm."""
    if metric.kind == "time":
        return 1 + len(metrics) + TIMES.index(metric.name)
    return 1 + metrics.index(metric)


def interval(metric: Metric, control: Mean, other: Mean, alpha: float) -> Interval:
    """The difference of two means of this metric, in the unit of its row (`row_of`)."""
    return intervals([(metric, control, other, alpha)])[0]


def intervals(asked: Sequence[tuple[Metric, Mean, Mean, float]]) -> list[Interval]:
    """`interval` of several metrics or arms at once."""
    rates = iter(
        rate_differences([(control, other, alpha) for metric, control, other, alpha in asked if metric.kind == "rate"])
    )
    return [
        next(rates)
        if metric.kind == "rate"
        else difference(control, other, alpha, 1.0 if metric.kind == "time" else None)
        for metric, control, other, alpha in asked
    ]


def compare(
    arm: str, metric: Metric, control: Mean, other: Mean, alpha: float, margin: float, found: Interval | None = None
) -> Comparison:
    """Compare an arm with the control.

    Args:
        arm: its name.
        metric: what is compared.
        control: the control's mean; of the logarithms for a time.
        other: the arm's.
        alpha: the chance of a miss.
        margin: a difference that counts as none: a share of the control's mean; for rates, which are near 0 or near 1,
            a tenth of it in absolute terms.
        found: their `interval`, where it is known.
    """
    found = found or interval(metric, control, other, alpha)
    within = 0.1 * margin if metric.kind == "rate" else margin * abs(control.value)
    size = abs(control.value)
    shown = found
    relative: tuple[float | None, ...] = tuple(each / size for each in found) if size else (None, None, None)
    if metric.kind == "time":
        within = log1p(margin)
        ratios = tuple(expm1(each) if each < _OVERFLOW else inf for each in found)
        shown, relative = Interval(*(exp(control.value) * each for each in ratios)), ratios
    decision = decide(found, metric, within)
    is_open = decision == "keep collecting"
    return Comparison(
        arm,
        metric.name,
        *shown,
        decision,
        relative[0],
        relative[1],
        relative[2],
        alpha,
        round(control.requests),
        round(other.requests),
        _reason(arm, control, other, found) if is_open else "",
        requests_needed(found, control.requests + other.requests, within, alpha) if is_open else None,
    )


def decide(found: Interval, metric: Metric, margin: float) -> Decision:
    """An interval as a decision; a difference within `margin` counts as none."""
    # First: an interval within the margin is no difference, even if it does not contain 0.
    if -margin <= found.low and found.high <= margin:
        return "no difference"
    if found.low <= 0 <= found.high:
        return "keep collecting"
    way: Literal["higher", "lower"] = "higher" if found.low > 0 else "lower"
    if metric.better is None:
        return way
    return "better" if way == metric.better else "worse"


def compare_quantiles(
    arm: str, times: Sequence[str], logarithms: Array, histograms: Array, alpha: float
) -> tuple[QuantileRatio, ...]:
    """The quantiles of an arm's times relative to the control's.

    Args:
        arm: its name.
        times: the metrics.
        logarithms: [splits, (control, arm), times, (count, sum), buckets].
        histograms: [splits, (control, arm), times, bins].
        alpha: the chance that the bounds of one of them ever miss.
    """
    weights = strata_weights(*(logarithms[:, side, :, 0].sum(axis=2) for side in (0, 1)))
    asked = []
    for at, sides in enumerate(means_of_rows(logarithms, 1)):
        counts = [weighted(histograms[:, side, at], weights[:, at]) for side in (0, 1)]
        effects = [log_design_effect(*side) for side in zip(counts, sides, strict=True)]
        asked += [
            (Asked(counts[0], q, alpha, effects[0]), Asked(counts[1], q, alpha, effects[1])) for q in QUANTILES.values()
        ]
    names = ((time, name) for time in times for name in QUANTILES)
    return tuple(QuantileRatio(arm, *name, *ratio) for name, ratio in zip(names, quantile_ratios(asked), strict=True))


def _reason(arm: str, control: Mean, other: Mean, found: Interval) -> str:
    """Why there is no decision yet."""
    for name, side in (("the control", control), (f"'{arm}'", other)):
        if not side.requests:
            return f"no request of {name} yet"
    for name, side in (("the control", control), (f"'{arm}'", other)):
        if side.clusters < FEWEST_CLUSTERS:
            return f"{name}: {side.clusters:.0f} effective units of {FEWEST_CLUSTERS} needed"
        if side.requests < FEWEST_REQUESTS:
            return f"{name}: {side.requests:.0f} requests of {FEWEST_REQUESTS} needed"
    if found.high == inf:
        return "all values are 0 so far"
    return "the interval contains 0 and is wider than the margin"
