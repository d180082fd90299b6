"""The report of an experiment: means, intervals and decisions, from the counters of all workers. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gateway.config import Endpoint
from gateway.experiments.counters_file import Sums
from gateway.experiments.metrics import (
    DIVERGENCES_AT,
    EXCLUDED,
    QUANTILES,
    TIMES,
    TOTALS,
    UNPAIRED_AT,
    Metric,
)
from gateway.experiments.pairs.agreement import Pairs, mean_estimate, rate_estimate, summarize
from gateway.experiments.pairs.verdict import Estimate
from gateway.experiments.statistics.comparison import (
    Comparison,
    QuantileRatio,
    compare,
    compare_quantiles,
    intervals,
    means,
    means_of_rows,
    metric_alphas,
    row_of,
)
from gateway.experiments.statistics.confidence import Array, Mean, means_of, rate_differences, sample_ratio_mismatch
from gateway.experiments.statistics.histogram import Asked, log_design_effect, quantile_bounds
from schemas.ir import FinishReason

SRM_ALPHA = 0.001
"""Chance of a false alarm of a sample-ratio mismatch, over all looks."""


class Quantile(msgspec.Struct, frozen=True):
    """A quantile in seconds. Null: not known, or longer than an hour or than clients waited."""

    estimate: float
    low: float
    high: float


class ArmReport(msgspec.Struct, frozen=True):
    """One arm: requests assigned to it, figures of those compared, counts of those excluded.

    Attributes:
        name: the served entity's.
        traffic_percentage: its present share.
        exposures: requests assigned to it.
        means: of each metric.
        finish_reasons: counts.
        excluded: counts; `lost` are those that a killed worker had begun.
        requests: how many requests each mean is of.
        effective_units: how many units of equal traffic its exposures are worth.
        geometric_means: of times, in seconds: a typical request's, which a few long ones hardly change. Arms are
            compared by them.
        quantiles: of times; the bounds of each ever miss with a chance of the report's `alpha`.
        exposures_in_split: requests assigned to it under the present split.
    """

    name: str
    traffic_percentage: int
    exposures: int
    means: dict[str, float]
    finish_reasons: dict[str, int]
    excluded: dict[str, int] = msgspec.field(name="apart")
    requests: dict[str, int] = {}
    effective_units: float = 0.0
    geometric_means: dict[str, float] = {}
    quantiles: dict[str, dict[str, Quantile]] = {}
    exposures_in_split: int = 0


class ShadowReport(msgspec.Struct, frozen=True):
    """A shadow's answers to its copies.

    Attributes:
        arm: its name.
        copies: how many were to be sent.
        sent: the share that was. The others were dropped, because the shadow was busy or could not answer: under load,
            so that the rest says less about busy times.
        success: of the copies sent.
        time_to_first_token: of the copies answered, like the rest.
        latency: in seconds, too.
        completion_tokens: of an answer.
    """

    arm: str
    copies: int
    sent: Estimate
    success: Estimate
    time_to_first_token: Estimate
    latency: Estimate
    completion_tokens: Estimate


class Report(msgspec.Struct, frozen=True):
    """An experiment's report over all workers. Its intervals are valid at every look.

    Attributes:
        endpoint: its name.
        control: the first arm's name.
        alpha: the chance that any of the comparisons ever says a false word, over all metrics and arms.
        arms: all, the control first.
        comparisons: of each other arm with the control, by each metric.
        sample_ratio_mismatch: whether the arms got other shares of the requests than configured.
        paired: of the paired arms.
        alphas: the part of `alpha` that each metric has, over all arms.
        quantiles: of each other arm's times, relative to the control's. They carry no decision: the bounds of each ever
            miss with a chance of `alpha` over the number of arms.
        shadows: of the served entities that get copies.
        primary: the metrics that decide the verdict, which have most of `alpha`.
        uneven_losses: the arms of whose ended requests another share reaches the comparison of `success` than of the
            control's: they are refused, their clients leave, or they never end, more or less often. The rest is a
            selection then.
    """

    endpoint: str
    control: str
    alpha: float
    arms: tuple[ArmReport, ...]
    comparisons: tuple[Comparison, ...]
    sample_ratio_mismatch: bool
    paired: tuple[Pairs, ...]
    alphas: dict[str, float] = {}
    quantiles: tuple[QuantileRatio, ...] = ()
    shadows: tuple[ShadowReport, ...] = ()
    primary: tuple[str, ...] = ()
    uneven_losses: tuple[str, ...] = ()


class SplitSums(NamedTuple):
    """What was counted of a split: the arms' shares in percent, and the sums over all workers, whose rows are
    exposures, metrics, logarithms of times and pair metrics; and the requests that never ended, if that is known:
    [arms, (lost with their worker, cancelled), buckets].
    """

    shares: Sequence[int]
    sums: Sums
    unended: Array | None = None


def build(name: str, endpoint: Endpoint, metrics: Sequence[Metric], splits: Sequence[SplitSums]) -> Report:
    """The report of an endpoint's experiment.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them.
        metrics: the compared ones.
        splits: what was counted, the present split last.
    """
    rows = np.array([split.sums.rows for split in splits])  # [splits, arms, rows, (count, sum), buckets]
    histograms = np.array([split.sums.histograms for split in splits])  # [splits, arms, times, bins]
    totals = np.sum([split.sums.totals for split in splits], axis=0)
    unended = np.array([split.unended if split.unended is not None else _none_of(split) for split in splits])
    arms, settings = [arm.name for arm in endpoint.served_entities], endpoint.experiment
    alphas = metric_alphas(metrics, settings.primary, settings.alpha)
    return Report(
        endpoint=name,
        control=arms[0],
        alpha=settings.alpha,
        arms=_arms(endpoint, metrics, rows, histograms, totals, unended.sum(axis=(0, 3))),
        comparisons=_comparisons(endpoint, metrics, alphas, rows),
        sample_ratio_mismatch=_has_mismatch(splits, totals),
        paired=_paired(endpoint, rows[:, :, 1 + len(metrics) + len(TIMES) :].sum(axis=0), totals),
        alphas=alphas,
        quantiles=_quantiles(endpoint, rows[:, :, 1 + len(metrics) :], histograms),
        primary=settings.primary,
        uneven_losses=_uneven_losses(arms, [metric.name for metric in metrics], rows, unended.sum(axis=2)),
    )


def _none_of(split: SplitSums) -> Array:
    return np.zeros((len(split.shares), 2, split.sums.rows.shape[-1]))


def shadow_report(arm: str, rows: Array, alpha: float) -> ShadowReport:
    """The figures of a shadow.

    Args:
        arm: its name.
        rows: [`SHADOW_METRICS`, (count, sum), buckets].
        alpha: the chance that an interval ever misses the mean.
    """
    rates, others = rows[:2], rows[2:]
    return ShadowReport(
        arm,
        int(rows[0, 0].sum()),
        *(rate_estimate(row, alpha) for row in rates),
        *(mean_estimate(row, alpha, least=0) for row in others),
    )


def arm_alpha(endpoint: Endpoint) -> float:
    """One arm's share of the experiment's alpha (Bonferroni)."""
    return endpoint.experiment.alpha / max(1, len(endpoint.served_entities) - 1)


def _arms(
    endpoint: Endpoint, metrics: Sequence[Metric], rows: Array, histograms: Array, totals: Array, unended: Array
) -> tuple[ArmReport, ...]:
    """The figures of each arm.

    `rows` are [splits, arms, rows, (count, sum), buckets], `histograms` [splits, arms, times, bins], `totals` [arms,
    totals], `unended` [arms, (lost, cancelled)].
    """
    reports = []
    for at, (arm, sums) in enumerate(zip(endpoint.served_entities, rows.sum(axis=0), strict=True)):
        counts = {total: int(count) for total, count in zip(TOTALS, totals[at], strict=True)}
        requests, values = sums.sum(axis=2).T
        seen = {metric.name: row for row, metric in enumerate(metrics, 1) if requests[row]}
        units, *logarithms = means_of(sums[[0, *range(1 + len(metrics), 1 + len(metrics) + len(TIMES))]][None])
        report = ArmReport(
            name=arm.name,
            traffic_percentage=arm.traffic_percentage,
            exposures=int(requests[0]),
            means={metric: float(values[row] / requests[row]) for metric, row in seen.items()},
            finish_reasons={str(reason): counts[reason] for reason in FinishReason if counts[reason]},
            excluded={excluded: counts[excluded] for excluded in EXCLUDED} | {"lost": int(unended[at, 0])},
            requests={metric: int(requests[row]) for metric, row in seen.items()},
            effective_units=units.clusters,
            exposures_in_split=int(rows[-1, at, 0, 0].sum()),
            **_times(logarithms, histograms[:, at].sum(axis=0), endpoint.experiment.alpha),
        )
        reports.append(report)
    return tuple(reports)


def _times(logarithms: Sequence[Mean], histograms: Array, alpha: float) -> dict[str, dict[str, Any]]:
    """The geometric means and quantiles of an arm's times, as fields of its report.

    Args:
        logarithms: the means of each time's.
        histograms: [times, bins].
        alpha: the chance that the bounds of one of them ever miss.
    """
    geometric: dict[str, float] = {}
    asked: dict[tuple[str, str], Asked] = {}
    for time, counts, found in zip(TIMES, histograms, logarithms, strict=True):
        if counts.any():
            geometric[time] = exp(found.value)
            effect = log_design_effect(counts, found)
            asked |= {(time, name): Asked(counts, q, alpha, effect) for name, q in QUANTILES.items()}
    bounds = dict(zip(asked, quantile_bounds([*asked.values()]), strict=True))
    quantiles = {time: {name: Quantile(*bounds[time, name]) for name in QUANTILES} for time in geometric}
    return {"geometric_means": geometric, "quantiles": quantiles}


def _comparisons(
    endpoint: Endpoint, metrics: Sequence[Metric], alphas: dict[str, float], rows: Array
) -> tuple[Comparison, ...]:
    """Each other arm beside the control, by each metric; `rows` as for `_arms`."""
    others = endpoint.served_entities[1:]
    asked = []
    for number in range(1, 1 + len(others)):
        sides = means_of_rows(rows, number)
        asked += [(metric, *sides[row_of(metrics, metric)], alphas[metric.name] / len(others)) for metric in metrics]
    arms = (arm.name for arm in others for _ in metrics)
    return tuple(
        compare(arm, *each, endpoint.experiment.margin, found)
        for arm, each, found in zip(arms, asked, intervals(asked), strict=True)
    )


def _quantiles(endpoint: Endpoint, logarithms: Array, histograms: Array) -> tuple[QuantileRatio, ...]:
    """The quantiles of each other arm's times beside the control's.

    `logarithms` are [splits, arms, times, (count, sum), buckets], `histograms` [splits, arms, times, bins].
    """
    return tuple(
        quantile
        for number, arm in enumerate(endpoint.served_entities)
        if number
        for quantile in compare_quantiles(
            arm.name,
            TIMES,
            logarithms[:, [0, number], : len(TIMES)],
            histograms[:, [0, number]],
            arm_alpha(endpoint),
        )
    )


def _paired(endpoint: Endpoint, rows: Array, totals: Array) -> tuple[Pairs, ...]:
    """The pairs of each paired arm with the control; `rows` are [arms, pair metrics, (count, sum), buckets]."""
    return tuple(
        summarize(
            endpoint.served_entities[0].name,
            arm.name,
            rows[at],
            totals[at, UNPAIRED_AT.start : UNPAIRED_AT.stop],
            totals[at, DIVERGENCES_AT.start : DIVERGENCES_AT.stop],
            arm_alpha(endpoint),
            arm.paired.margin,
        )
        for at, arm in enumerate(endpoint.served_entities)
        if arm.paired is not None
    )


def _has_mismatch(splits: Sequence[SplitSums], totals: Array) -> bool:
    if totals[:, EXCLUDED.index("stopped")].any():
        return False  # the guardrail changed the split
    return any(
        sample_ratio_mismatch(split.sums.rows[:, 0, 0], np.array(split.shares) / 100, SRM_ALPHA / len(splits))
        for split in splits
    )


def _uneven_losses(arms: Sequence[str], metrics: Sequence[str], rows: Array, unended: Array) -> tuple[str, ...]:
    # Every request that ended is counted in the row of `abandoned`, and every one that never will in `unended`; those
    # in flight are in neither.
    ended, compared = (rows[:, :, 1 + metrics.index(name), 0] for name in ("abandoned", "success"))
    reached = np.stack((ended + unended, compared), axis=2)[:, :, None]  # [splits, arms, 1, (count, sum), buckets]
    alpha = SRM_ALPHA / max(1, len(arms) - 1)
    others = arms[1:]
    found = rate_differences([(*means(reached, number, 0), alpha) for number in range(1, len(arms))])
    return tuple(arm for arm, share in zip(others, found, strict=True) if share.low > 0 or share.high < 0)
