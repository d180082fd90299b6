"""Guardrails: which arms are certainly worse than an experiment allows. Pure arithmetic on its counters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import expm1, pi

import numpy as np

from gateway.config import Endpoint, MetricGuardrail
from gateway.experiments.metrics import TIMES, Metric
from gateway.experiments.report import SplitSums, arm_alpha
from gateway.experiments.statistics.comparison import compare_quantiles, interval, means, row_of
from gateway.experiments.statistics.confidence import Array, Mean
from gateway.experiments.statistics.evalue import fails_more

EARLY = 0.8
"""Of the alpha of the guardrail for failures: for the early stop; the rest is for the interval."""
FIRST_BET = 6 / pi**2
"""Of the early stop's alpha: for the first split. The bet begins anew in each split; the n-th one has 1 / n^2 of this,
which adds up to 1.
"""


def has_guardrails(endpoint: Endpoint) -> bool:
    """Whether an arm of the endpoint may be stopped."""
    return endpoint.experiment.guardrail is not None or bool(endpoint.experiment.guardrails)


def broken(
    endpoint: Endpoint, metrics: Sequence[Metric], splits: Sequence[SplitSums], candidates: Collection[str]
) -> dict[str, str]:
    """The arms that are worse than a guardrail allows, by any of them, and by which metric.

    All rules hold at every look and share the experiment's `alpha`, so looking often does not raise the chance of a
    false stop.

    Args:
        endpoint: its arms and guardrails.
        metrics: the compared ones.
        splits: what was counted, the present split last.
        candidates: the arms that may be stopped.
    """
    guardrail, others = endpoint.experiment.guardrail, endpoint.experiment.guardrails
    alpha = arm_alpha(endpoint) / (2 * (guardrail is not None) + len(others))
    rows = np.array([split.sums.rows for split in splits])
    by_name = {metric.name: metric for metric in metrics}
    found: dict[str, str] = {}
    for arm, entity in enumerate(endpoint.served_entities):
        if entity.name not in candidates:
            continue
        if guardrail is not None and _fails_more(rows, arm, metrics, guardrail.worse_than, 2 * alpha):
            found[entity.name] = "success"
        for other in others:
            metric = by_name[other.metric]
            if other.quantile is not None:
                least = _least_quantile(splits, rows, arm, metrics, other, alpha)
            else:
                least = _worse(metric, *means(rows, arm, row_of(metrics, metric)), alpha)
            if least > other.worse_than:
                found[entity.name] = f"{other.quantile} of {metric.name}" if other.quantile else metric.name
    return found


def _fails_more(rows: Array, arm: int, metrics: Sequence[Metric], worse_than: float, alpha: float) -> bool:
    """Whether an arm fails more often than a guardrail allows: by the bet, or by the interval.

    The bet ends an arm that fails far more within a few requests; the interval ends one that fails a little more, which
    takes many requests, so that it can do with a small part of alpha.
    """
    success = next(metric for metric in metrics if metric.name == "success")
    row = row_of(metrics, success)
    share = FIRST_BET / len(rows) ** 2
    if fails_more(rows[-1, 0, row], rows[-1, arm, row], worse_than, EARLY * share * alpha):
        return True
    return _worse(success, *means(rows, arm, row), (1 - EARLY) * alpha) > worse_than


def _least_quantile(
    splits: Sequence[SplitSums],
    rows: Array,
    arm: int,
    metrics: Sequence[Metric],
    guardrail: MetricGuardrail,
    alpha: float,
) -> float:
    """By how much at least an arm's quantile exceeds the control's, as a share of that."""
    time = TIMES.index(guardrail.metric)
    row = 1 + len(metrics) + time
    logarithms = rows[:, [0, arm], row : row + 1]
    histograms = np.array([split.sums.histograms[[0, arm], time : time + 1] for split in splits])
    ratios = compare_quantiles("", (guardrail.metric,), logarithms, histograms, alpha)
    return next(each.low for each in ratios if each.quantile == guardrail.quantile) - 1


def _worse(metric: Metric, control: Mean, other: Mean, alpha: float) -> float:
    """How much worse the other arm is at least: of rates in absolute terms, else as a share of the control's mean."""
    found = interval(metric, control, other, alpha)
    least = found.low if metric.better == "lower" else -found.high
    if metric.kind == "rate":
        return least
    if metric.kind == "time":  # means of logarithms
        return expm1(least)
    return least / abs(control.value) if control.value else 0.0
