"""What a report says of an arm: decisions, their reasons, and how alpha is shared."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np
import pytest

from gateway.experiments.metrics import METRICS, Metric
from gateway.experiments.statistics.comparison import compare, compare_quantiles, metric_alphas
from gateway.experiments.statistics.confidence import Array, Mean, mean
from gateway.experiments.statistics.histogram import BINS, bin_of
from gateway.routing.assignment import BUCKETS

SUCCESS, LATENCY, TOKENS = (
    next(metric for metric in METRICS if metric.name == name) for name in ("success", "latency", "prompt_tokens")
)
ALPHA, MARGIN = 0.05, 0.05


def rate(value: float, requests: float, clusters: float = 400.0) -> Mean:
    return Mean(value, value * (1 - value) / requests, requests, clusters)


def test_alpha_is_shared_by_all_metrics() -> None:
    metrics = (*METRICS, Metric("liked", "higher"))
    alphas = metric_alphas(metrics, ("success", "latency"), ALPHA)
    assert sum(alphas.values()) == pytest.approx(ALPHA)
    assert alphas["success"] == alphas["latency"] == pytest.approx(0.3 * ALPHA)
    assert alphas["success"] > alphas["liked"] == alphas["refused"] > alphas["prompt_tokens"] > 0
    assert metric_alphas(metrics, ("liked",), ALPHA)["liked"] == pytest.approx(0.6 * ALPHA)


@pytest.mark.parametrize(
    ("control", "other", "reason"),
    [
        (Mean(0.0, inf, 0.0), rate(0.9, 500), "no request of the control yet"),
        (rate(0.9, 500), Mean(0.0, inf, 0.0), "no request of 'b' yet"),
        (rate(0.9, 500), Mean(0.9, inf, 5000.0, 7.2), "'b': 7 effective units of 10 needed"),
        (rate(0.9, 500), Mean(0.9, inf, 40.0, 40.0), "'b': 40 requests of 100 needed"),
        (rate(0.9, 500), rate(0.9, 500), "the interval contains 0 and is wider than the margin"),
    ],
)
def test_a_report_says_why_it_cannot_decide(control: Mean, other: Mean, reason: str) -> None:
    found = compare("b", SUCCESS, control, other, ALPHA, MARGIN)
    assert (found.decision, found.reason) == ("keep collecting", reason)
    assert (found.requests_needed is None) == (found.high == inf)
    assert (found.control_requests, found.requests) == (control.requests, other.requests)


def test_a_decision_needs_no_reason() -> None:
    found = compare("b", SUCCESS, rate(0.99, 20_000), rate(0.9, 20_000), ALPHA, MARGIN)
    assert (found.decision, found.reason, found.requests_needed) == ("worse", "", None)
    assert found.relative == pytest.approx(-0.09 / 0.99)
    assert found.relative_low is not None
    assert found.relative_high is not None
    assert found.relative_low < found.relative < found.relative_high < 0


def test_the_requests_still_needed_decide() -> None:
    first = compare("b", SUCCESS, rate(0.99, 1000), rate(0.985, 1000), ALPHA, MARGIN)
    assert first.requests_needed is not None
    each = (2000 + 1.2 * first.requests_needed) / 2
    assert compare("b", SUCCESS, rate(0.99, each), rate(0.985, each), ALPHA, MARGIN).decision != "keep collecting"


def test_times_are_compared_by_the_ratio_of_their_geometric_means() -> None:
    control, other = Mean(log(0.2), 0.25 / 4000, 4000, 400), Mean(log(0.3), 0.25 / 4000, 4000, 400)
    found = compare("b", LATENCY, control, other, ALPHA, MARGIN)
    assert found.decision == "worse"
    assert found.difference == pytest.approx(0.1)
    assert found.relative == pytest.approx(0.5)
    assert found.low < 0.1 < found.high
    alike = compare("b", LATENCY, control, Mean(log(0.201), 0.25 / 4000, 400_000, 400), ALPHA, MARGIN)
    assert alike.decision == "keep collecting"
    assert compare(
        "b", LATENCY, Mean(0.0, 1e-6, 10_000, 400), Mean(0.01, 1e-6, 10_000, 400), ALPHA, MARGIN
    ).decision == ("no difference")


def test_a_metric_of_zeros_has_no_relative_difference() -> None:
    found = compare("b", TOKENS, Mean(0.0, 0.0, 500, 400), Mean(0.0, 0.0, 500, 400), ALPHA, MARGIN)
    assert (found.relative, found.reason) == (None, "all values are 0 so far")


def counted(seconds: Array) -> tuple[Array, Array]:
    """Of durations, each of a unit of its own: counts and sums of logarithms [2, buckets], and histogram [bins]."""
    buckets = np.arange(len(seconds)) % BUCKETS
    counts = np.bincount(buckets, minlength=BUCKETS)
    sums = np.bincount(buckets, weights=np.log(seconds), minlength=BUCKETS)
    bins = np.bincount([bin_of(float(each)) for each in seconds], minlength=BINS)
    return np.array([counts, sums]), bins.astype(float)


def test_quantiles_are_compared_within_splits() -> None:
    """Both arms are three times as slow in the second split, in which the other arm has most of its requests."""
    source = np.random.default_rng(0)
    sizes, slower = ((4000, 400), (2000, 2000)), (1.0, 3.0)
    found = [
        [counted(source.lognormal(0, 0.5, size) * factor) for size in split]
        for split, factor in zip(sizes, slower, strict=True)
    ]
    logarithms, histograms = (np.array([[arm[part] for arm in split] for split in found]) for part in (0, 1))
    half, most = compare_quantiles("b", ("latency",), logarithms[:, :, None], histograms[:, :, None], ALPHA)
    assert (half.quantile, most.quantile) == ("p50", "p95")
    assert half.low < 1 < half.high
    assert half.ratio == pytest.approx(1.0, abs=0.1)
    pooled = histograms.sum(axis=0, keepdims=True), logarithms.sum(axis=0, keepdims=True)
    assert compare_quantiles("b", ("latency",), pooled[1][:, :, None], pooled[0][:, :, None], ALPHA)[0].low > 1


def test_bounds_of_quantiles_are_wider_for_units_that_differ() -> None:
    source = np.random.default_rng(1)
    own = source.normal(0, 1.0, (2, 60))
    values = np.exp(np.repeat(own, 40, axis=1) + source.normal(0, 0.3, (2, 2400)))
    sides = []
    for arm in values:
        buckets = np.repeat(source.integers(0, BUCKETS, 60), 40)
        counts = np.bincount(buckets, minlength=BUCKETS)
        sums = np.bincount(buckets, weights=np.log(arm), minlength=BUCKETS)
        sides.append((np.array([counts, sums]), np.bincount([bin_of(float(each)) for each in arm], minlength=BINS)))
    logarithms, histograms = (np.array([[side[part] for side in sides]], dtype=float) for part in (0, 1))
    clustered = compare_quantiles("b", ("latency",), logarithms[:, :, None], histograms[:, :, None], ALPHA)[0]
    independent = [counted(arm) for arm in source.permuted(values, axis=1)]
    logarithms, histograms = (np.array([[side[part] for side in independent]]) for part in (0, 1))
    alone = compare_quantiles("b", ("latency",), logarithms[:, :, None], histograms[:, :, None], ALPHA)[0]
    assert log(clustered.high / clustered.low) > 2 * log(alone.high / alone.low)
    assert mean(*logarithms[0, 0]).clusters > 400
    assert exp(-1) < clustered.ratio < exp(1)
