"""Guardrails: which arms are certainly worse than an experiment allows. Pure arithmetic on its counters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import expm1

import numpy as np

from gateway.config import Endpoint
from gateway.experiments.metrics import METRICS, Metric
from gateway.experiments.report import SplitSums, arm_alpha
from gateway.experiments.statistics.comparison import interval, means, row_of
from gateway.experiments.statistics.confidence import Mean
from gateway.experiments.statistics.evalue import fails_more


def has_guardrails(endpoint: Endpoint) -> bool:
    """Whether an arm of the endpoint may be stopped."""
    return endpoint.experiment.guardrail is not None or bool(endpoint.experiment.guardrails)


def wrong_guardrail(endpoint: Endpoint) -> str | None:
    """What is wrong with the metrics of guardrails, as a text to append to the endpoint's name; None if nothing is."""
    known = [metric.name for metric in METRICS if metric.better] + list(endpoint.experiment.feedback)
    for guardrail in endpoint.experiment.guardrails:
        if guardrail.metric not in known:
            return f".experiment.guardrails: there is no metric '{guardrail.metric}'; there are {', '.join(known)}"
    return None


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
    names = [metric.name for metric in metrics]
    found: dict[str, str] = {}
    for arm, entity in enumerate(endpoint.served_entities):
        if entity.name not in candidates:
            continue
        # The bet ends an arm that fails far more within a few requests, the interval one that fails a little more. It
        # begins anew in each split, so the splits share its alpha: 1/2 + 1/6 + 1/12 + ... is at most 1.
        success = names.index("success")
        control, other = rows[-1, 0, 1 + success], rows[-1, arm, 1 + success]
        if guardrail is not None and (
            fails_more(control, other, guardrail.worse_than, alpha / (len(splits) * (len(splits) + 1)))
            or _worse(metrics[success], *means(rows, arm, row_of(metrics, metrics[success])), alpha)
            > guardrail.worse_than
        ):
            found[entity.name] = "success"
        for other_guardrail in others:
            at = names.index(other_guardrail.metric)
            if _worse(metrics[at], *means(rows, arm, row_of(metrics, metrics[at])), alpha) > other_guardrail.worse_than:
                found[entity.name] = other_guardrail.metric
    return found


def _worse(metric: Metric, control: Mean, other: Mean, alpha: float) -> float:
    """How much worse the other arm is at least: of rates in absolute terms, else as a share of the control's mean."""
    found = interval(metric, control, other, alpha)
    least = found.low if metric.better == "lower" else -found.high
    if metric.kind == "rate":
        return least
    if metric.kind == "time":  # means of logarithms
        return expm1(least)
    return least / abs(control.value) if control.value else 0.0
