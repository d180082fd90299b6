"""The report of an experiment: means, intervals and decisions, from the counters of all workers. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from gateway.config import Endpoint
from gateway.experiments.agreement import Pairs, summarize
from gateway.experiments.confidence import (
    Array,
    Interval,
    Mean,
    difference,
    mean,
    rate_difference,
    sample_ratio_mismatch,
)
from gateway.experiments.metrics import DIVERGENCES_AT, EXCLUDED, TIMES, TOTALS, UNPAIRED_AT, Metric
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


def build(name: str, endpoint: Endpoint, metrics: Sequence[Metric], sums: Array, totals: Array) -> Report:
    """The report of an endpoint's experiment.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them.
        metrics: the compared ones.
        sums: [arms, exposures, metrics, logarithms of times and pair metrics, (count, sum), buckets].
        totals: [arms, `TOTALS`].
    """
    # `arm[metric]` is [(count, sum), buckets].
    means = [[mean(*arm[metric]) for metric in range(1, 1 + len(metrics))] for arm in sums]
    arms, settings, alpha = endpoint.served_entities, endpoint.experiment, arm_alpha(endpoint)
    return Report(
        name,
        arms[0].name,
        settings.alpha,
        tuple(
            _arm(arm.name, arm.traffic_percentage, metrics, sums[at], means[at], totals[at])
            for at, arm in enumerate(arms)
        ),
        tuple(
            _compare(arms[number].name, metric, means[0][at], means[number][at], alpha, settings.margin)
            for number in range(1, len(arms))
            for at, metric in enumerate(metrics)
        ),
        _has_mismatch(endpoint, sums, totals),
        tuple(
            _pairs(
                arms[0].name,
                arm.name,
                sums[at, 1 + len(metrics) + len(TIMES) :],
                totals[at],
                alpha,
                arm.paired.margin,
            )
            for at, arm in enumerate(arms)
            if arm.paired is not None
        ),
    )


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


def _arm(
    name: str, traffic_percentage: int, metrics: Sequence[Metric], sums: Array, means: Sequence[Mean], totals: Array
) -> ArmReport:
    counts = {total: int(count) for total, count in zip(TOTALS, totals, strict=True)}
    return ArmReport(
        name,
        traffic_percentage,
        int(sums[0, 0].sum()),
        {metric.name: found.value for metric, found in zip(metrics, means, strict=True) if found.requests},
        {str(reason): counts[reason] for reason in FinishReason if counts[reason]},
        {excluded: counts[excluded] for excluded in EXCLUDED},
    )


def _compare(arm: str, metric: Metric, control: Mean, other: Mean, alpha: float, margin: float) -> Comparison:
    found = (rate_difference if metric.kind == "rate" else difference)(control, other, alpha)
    # `success` is a rate near 1: a share of it would be too wide, so the margin is taken of 0.1.
    scale = 0.1 if metric.name == "success" else abs(control.value)
    return Comparison(arm, metric.name, *found, decide(found, metric, margin * scale))


def _pairs(control: str, arm: str, metrics: Array, totals: Array, alpha: float, margin: float) -> Pairs:
    unpaired, divergences = (totals[each.start : each.stop] for each in (UNPAIRED_AT, DIVERGENCES_AT))
    return summarize(control, arm, metrics, unpaired, divergences, alpha, margin)


def _has_mismatch(endpoint: Endpoint, sums: Array, totals: Array) -> bool:
    if totals[:, EXCLUDED.index("stopped")].any():
        return False  # the guardrail changed the split
    shares = np.array([arm.traffic_percentage / 100 for arm in endpoint.served_entities])
    return sample_ratio_mismatch(sums[:, 0, 0], shares, SRM_ALPHA)
