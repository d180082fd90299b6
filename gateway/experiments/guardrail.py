"""Guardrails: which arms are certainly worse than an experiment allows. Pure arithmetic on its counters."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gateway.config import Endpoint
from gateway.experiments.confidence import Interval, Mean, difference, rate_difference
from gateway.experiments.evalue import fails_more
from gateway.experiments.metrics import METRICS, Metric
from gateway.experiments.report import SplitSums, arm_alpha, means


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
        # The bet ends an arm that fails far more within a few requests, the interval one that fails a little more.
        success = names.index("success")
        control, other = rows[-1, 0, 1 + success], rows[-1, arm, 1 + success]
        if guardrail is not None and (
            fails_more(control, other, guardrail.worse_than, alpha)
            or _worse(metrics[success], *means(rows, arm, 1 + success), alpha) > guardrail.worse_than
        ):
            found[entity.name] = "success"
        for other_guardrail in others:
            at = names.index(other_guardrail.metric)
            if _worse(metrics[at], *means(rows, arm, 1 + at), alpha) > other_guardrail.worse_than:
                found[entity.name] = other_guardrail.metric
    return found


def _worse(metric: Metric, control: Mean, other: Mean, alpha: float) -> float:
    """How much worse the other arm is at least: of rates in absolute terms, else as a share of the control's mean."""
    interval: Interval = (rate_difference if metric.kind == "rate" else difference)(control, other, alpha)
    least = interval.low if metric.better == "lower" else -interval.high
    if metric.kind == "rate":
        return least
    return least / abs(control.value) if control.value else 0.0
