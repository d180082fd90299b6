"""The metrics of the gateway: what each call counts, and that workers' counts add up."""

from __future__ import annotations

from pathlib import Path

from backends.base import Health
from gateway.observability.metrics import Metrics
from schemas.ir import FinishReason, Usage

NOTHING = dict.fromkeys(
    ("gw_requests_running", "gw_event_loop_tasks", "gw_export_rows_lost_total", "gw_usage_records_lost_total"), 0.0
)


def samples(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_request_is_running_until_it_ends() -> None:
    metrics = Metrics({})
    assert samples(metrics) == NOTHING
    metrics.running.add(1.0)
    metrics.running.add(1.0)
    metrics.running.add(-1.0)
    metrics.requests.add(("openai", "chat", "ok"))
    assert samples(metrics) == NOTHING | {
        "gw_requests_running": 1.0,
        'gw_requests_total{outcome="ok",protocol="openai",route="chat"}': 1.0,
    }


def test_an_answer_is_counted_by_served_entity() -> None:
    metrics = Metrics({})
    metrics.served_requests.add(("chat", "a", "ok"))
    metrics.count_answer(("chat", "a", "b"), Usage(10, 20), 200.0, 0.003, 190.003)
    metrics.count_choices(("chat", "a", "b"), [FinishReason.EOS, FinishReason.LENGTH], "ok")
    metrics.count_choices(("chat", "a", "b"), [], "client_gone")
    metrics.count_choices(("chat", "a", "b"), [], "timeout")
    found = samples(metrics)
    assert found['gw_served_requests_total{model="chat",outcome="ok",served="a"}'] == 1.0
    labels = 'backend="b",model_name="chat",served="a"'
    assert (
        found[f"vllm:prompt_tokens_total{{{labels}}}"] == found[f"vllm:request_prompt_tokens_sum{{{labels}}}"] == 10.0
    )
    assert found[f"vllm:generation_tokens_total{{{labels}}}"] == 20.0
    first, total = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"
    labelled = 'backend="b",{},model_name="chat",served="a"'
    buckets = {le: found[first + "_bucket{" + labelled.format(f'le="{le}"') + "}"] for le in ("0.001", "0.005", "+Inf")}
    assert buckets == {"0.001": 0.0, "0.005": 1.0, "+Inf": 1.0}
    assert found[total + "_bucket{" + labelled.format('le="120.0"') + "}"] == 0.0
    assert found[f"{total}_count{{{labels}}}"] == 1.0
    assert found[f"{total}_sum{{{labels}}}"] == 200.0
    assert found[f"vllm:request_time_per_output_token_seconds_sum{{{labels}}}"] == 10.0
    reasons = {
        reason: found["vllm:request_success_total{" + labelled.format(f'finished_reason="{reason}"') + "}"]
        for reason in ("stop", "length", "abort", "error")
    }
    assert set(reasons.values()) == {1.0}


def test_an_answer_that_is_not_streamed_has_no_time_of_its_first_token() -> None:
    metrics = Metrics({})
    metrics.count_answer(("chat", "a", "b"), Usage(10, 1), 2.0, None, 0.0)
    assert not [name for name in samples(metrics) if "first_token" in name or "per_output" in name]


def test_a_backend_is_up_for_the_share_of_living_workers_to_which_it_is_ready(tmp_path: Path) -> None:
    one, two = (Metrics({}, tmp_path, slot) for slot in ("worker-0", "worker-1"))
    up, breaker = (name + '{backend="far"}' for name in ("gw_backend_up", "gw_backend_breaker_open"))
    assert up not in samples(one)
    one.note_health({"far": Health("ready")})
    two.note_health({"far": Health("ready", "5 failures in a row")})
    assert (samples(one)[up], samples(two)[breaker]) == (0.5, 0.5)
    two.close()
    assert (samples(one)[up], samples(one)[breaker]) == (1.0, 0.0)
    successor = Metrics({}, tmp_path, "worker-1")
    assert (samples(one)[up], samples(one)[breaker]) == (1.0, 0.0), "it has seen nothing yet"
    successor.note_health({"far": Health("loading")})
    assert (samples(one)[up], samples(one)[breaker]) == (0.5, 0.0)


def test_failures_and_copies_are_counted() -> None:
    metrics = Metrics({})
    metrics.fallbacks.add(("chat", "a"))
    metrics.shadow_requests.add(("chat", "b", "dropped"))
    metrics.pairs.add(("chat", "b", "ok"))
    found = samples(metrics)
    assert found['gw_fallbacks_total{model="chat",served="a"}'] == 1.0
    assert found['gw_shadow_requests_total{model="chat",outcome="dropped",served="b"}'] == 1.0
    assert found['gw_pairs_total{model="chat",outcome="ok",served="b"}'] == 1.0


def test_any_worker_shows_the_sums_and_a_successor_continues_them(tmp_path: Path) -> None:
    one, two = (Metrics({}, tmp_path, slot) for slot in ("worker-0", "worker-1"))
    for metrics in (one, two, two):
        metrics.running.add(1.0)
        metrics.running.add(-1.0)
        metrics.requests.add(("tgi", "generate", "ok"))
    two.running.add(1.0)
    one.tasks.set(5.0)
    two.tasks.set(2.0)
    expected = NOTHING | {
        "gw_requests_running": 1.0,
        "gw_event_loop_tasks": 7.0,
        'gw_requests_total{outcome="ok",protocol="tgi",route="generate"}': 3.0,
    }
    assert samples(one) == samples(two) == expected
    two.close()
    assert samples(one) == expected | {"gw_requests_running": 0.0, "gw_event_loop_tasks": 5.0}
    successor = Metrics({}, tmp_path, "worker-1")
    successor.running.add(1.0)
    successor.running.add(-1.0)
    successor.requests.add(("tgi", "generate", "ok"))
    assert samples(one)['gw_requests_total{outcome="ok",protocol="tgi",route="generate"}'] == 4.0
