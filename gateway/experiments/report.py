"""The report of an experiment: means, intervals and decisions, from the counters of all workers. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from gateway.config import Endpoint
from gateway.experiments.confidence import (
    Array,
    Interval,
    Mean,
    difference,
    mean,
    rate_difference,
    sample_ratio_mismatch,
    strata_weights,
)
from gateway.experiments.counters_file import Sums
from gateway.experiments.metrics import DIVERGENCES_AT, EXCLUDED, TIMES, TOTALS, UNPAIRED_AT, Metric
from gateway.experiments.pairs.agreement import Pairs, summarize
from schemas.ir import FinishReason

SRM_ALPHA = 0.001
"""Chance of a false alarm of a sample-ratio mismatch, over all looks."""

Decision = Literal["better", "worse", "higher", "lower", "no difference", "keep collecting"]


class ArmReport(msgspec.Struct, frozen=True):
    """One arm: requests assigned to it, means over those compared, counts of those excluded."""

    name: str
    traffic_percentage: int
    exposures: int
    means: dict[str, float]
    finish_reasons: dict[str, int]
    excluded: dict[str, int] = msgspec.field(name="apart")


class Comparison(msgspec.Struct, frozen=True):
    """One arm against the control by one metric. Bounds are null while there are too few requests."""

    arm: str
    metric: str
    difference: float
    low: float
    high: float
    decision: Decision


class Report(msgspec.Struct, frozen=True):
    """An experiment's report over all workers. Its intervals are valid at every look. `paired`: of the paired arms."""

    endpoint: str
    control: str
    alpha: float
    arms: tuple[ArmReport, ...]
    comparisons: tuple[Comparison, ...]
    sample_ratio_mismatch: bool
    paired: tuple[Pairs, ...]


class SplitSums(NamedTuple):
    """What was counted of a split: the arms' shares in percent, and the sums over all workers, whose rows are
    exposures, metrics, logarithms of times and pair metrics.
    """

    shares: Sequence[int]
    sums: Sums


def build(name: str, endpoint: Endpoint, metrics: Sequence[Metric], splits: Sequence[SplitSums]) -> Report:
    """The report of an endpoint's experiment.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them.
        metrics: the compared ones.
        splits: what was counted, the present split last.
    """
    rows = np.array([split.sums.rows for split in splits])  # [splits, arms, rows, (count, sum), buckets]
    totals = np.sum([split.sums.totals for split in splits], axis=0)
    whole = rows.sum(axis=0)
    arms, settings, alpha = endpoint.served_entities, endpoint.experiment, arm_alpha(endpoint)
    return Report(
        name,
        arms[0].name,
        settings.alpha,
        tuple(_arm(arm.name, arm.traffic_percentage, metrics, whole[at], totals[at]) for at, arm in enumerate(arms)),
        tuple(
            _compare(arms[number].name, metric, *means(rows, number, row), alpha, settings.margin)
            for number in range(1, len(arms))
            for row, metric in enumerate(metrics, 1)
        ),
        _has_mismatch(splits, totals),
        tuple(
            _pairs(
                arms[0].name,
                arm.name,
                whole[at, 1 + len(metrics) + len(TIMES) :],
                totals[at],
                alpha,
                arm.paired.margin,
            )
            for at, arm in enumerate(arms)
            if arm.paired is not None
        ),
    )


def means(rows: Array, arm: int, row: int) -> tuple[Mean, Mean]:
    """The means of the control and of an arm, each weighted alike over the splits.

    Args:
        rows: [splits, arms, rows, (count, sum), buckets].
        arm: the arm's index.
        row: the metric's.
    """
    control, other = rows[:, 0, row], rows[:, arm, row]
    weights = strata_weights(control[:, 0].sum(axis=1), other[:, 0].sum(axis=1))
    if not weights.any():  # no split in which both arms have values
        return mean(*control.sum(axis=0)), mean(*other.sum(axis=0))
    return mean(control[:, 0], control[:, 1], weights), mean(other[:, 0], other[:, 1], weights)


def arm_alpha(endpoint: Endpoint) -> float:
    """One arm's share of the experiment's alpha (Bonferroni)."""
    return endpoint.experiment.alpha / max(1, len(endpoint.served_entities) - 1)


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


def _arm(name: str, traffic_percentage: int, metrics: Sequence[Metric], sums: Array, totals: Array) -> ArmReport:
    counts = {total: int(count) for total, count in zip(TOTALS, totals, strict=True)}
    return ArmReport(
        name,
        traffic_percentage,
        int(sums[0, 0].sum()),
        {
            metric.name: float(sums[row, 1].sum() / sums[row, 0].sum())
            for row, metric in enumerate(metrics, 1)
            if sums[row, 0].any()
        },
        {str(reason): counts[reason] for reason in FinishReason if counts[reason]},
        {excluded: counts[excluded] for excluded in EXCLUDED},
    )


def _compare(arm: str, metric: Metric, control: Mean, other: Mean, alpha: float, margin: float) -> Comparison:
    found = (rate_difference if metric.kind == "rate" else difference)(control, other, alpha)
    # Rates are near 1 or near 0, where a share of them would be too wide or nothing: the margin is taken of 0.1.
    scale = 0.1 if metric.kind == "rate" else abs(control.value)
    return Comparison(arm, metric.name, *found, decide(found, metric, margin * scale))


def _pairs(control: str, arm: str, metrics: Array, totals: Array, alpha: float, margin: float) -> Pairs:
    unpaired, divergences = (totals[each.start : each.stop] for each in (UNPAIRED_AT, DIVERGENCES_AT))
    return summarize(control, arm, metrics, unpaired, divergences, alpha, margin)


def _has_mismatch(splits: Sequence[SplitSums], totals: Array) -> bool:
    if totals[:, EXCLUDED.index("stopped")].any():
        return False  # the guardrail changed the split
    return any(
        sample_ratio_mismatch(split.sums.rows[:, 0, 0], np.array(split.shares) / 100, SRM_ALPHA / len(splits))
        for split in splits
    )
