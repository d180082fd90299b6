"""Metrics: which of them may decide something."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.config import Endpoint, Experiment, MetricGuardrail, Price, Ramp, ServedEntity
from gateway.experiments.metrics import METRICS, Metric, metrics_of, wrong_metrics

ARMS = tuple(ServedEntity(name=name, backend="s", traffic_percentage=50) for name in "ab")


@pytest.mark.parametrize("metric", ["success", "thumbs", "completion_tokens", "unknown"])
def test_metrics_without_a_better_direction_decide_nothing(metric: str) -> None:
    wrong = metric not in ("success", "thumbs")
    for settings in (
        Experiment(ramp=Ramp(arm="b", metrics=(metric,)), feedback={"thumbs": "higher"}),
        Experiment(guardrails=(MetricGuardrail(metric=metric, worse_than=0.1),), feedback={"thumbs": "higher"}),
        Experiment(primary=("latency", metric), feedback={"thumbs": "higher"}),
    ):
        found = wrong_metrics(Endpoint(served_entities=ARMS, experiment=settings))
        assert (found is not None) == wrong
        assert found is None or f"there is no metric '{metric}'" in found


@pytest.mark.parametrize(("metric", "wrong"), [("latency", False), ("refused", True)])
def test_only_times_have_quantiles(metric: str, wrong: bool) -> None:
    settings = Experiment(guardrails=(MetricGuardrail(metric=metric, worse_than=0.1, quantile="p95"),))
    assert (wrong_metrics(Endpoint(served_entities=ARMS, experiment=settings)) is not None) == wrong


def test_a_guardrail_on_the_cost_needs_the_prices_of_all_arms() -> None:
    settings = Experiment(guardrails=(MetricGuardrail(metric="cost", worse_than=0.1),))
    priced = tuple(replace(arm, price=Price(prompt=1.0)) for arm in ARMS)
    assert wrong_metrics(Endpoint(served_entities=priced, experiment=settings)) is None
    found = wrong_metrics(Endpoint(served_entities=(priced[0], ARMS[1]), experiment=settings))
    assert found is not None
    assert "the price of 'b'" in found


@pytest.mark.parametrize("metric", METRICS)
def test_feedback_replaces_no_metric_of_the_gateway(metric: Metric) -> None:
    settings = Experiment(feedback={"thumbs": "higher", metric.name: "higher"})
    found = wrong_metrics(Endpoint(served_entities=ARMS, experiment=settings))
    assert found is not None
    assert f"'{metric.name}' is the gateway's own metric" in found


def test_feedback_metrics_come_last() -> None:
    found = metrics_of(Endpoint(served_entities=ARMS, experiment=Experiment(feedback={"thumbs": "higher"})))
    assert (found[0].name, found[-1].name, found[-1].better) == ("success", "thumbs", "higher")
