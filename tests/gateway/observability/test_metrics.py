"""The metrics of the gateway: what each call counts, and that workers' counts add up."""

from __future__ import annotations

from pathlib import Path

from gateway.observability.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_request_is_running_until_it_ends() -> None:
    metrics = Metrics({})
    assert samples(metrics) == {"gw_requests_running": 0.0, "gw_event_loop_tasks": 0.0}
    metrics.running.add(1.0)
    metrics.running.add(1.0)
    metrics.running.add(-1.0)
    metrics.requests.add(("openai", "chat", "ok"))
    assert samples(metrics) == {
        "gw_requests_running": 1.0,
        "gw_event_loop_tasks": 0.0,
        'gw_requests_total{outcome="ok",protocol="openai",route="chat"}': 1.0,
    }


def test_an_answer_is_counted_by_served_entity() -> None:
    metrics = Metrics({})
    metrics.served_requests.add(("chat", "a", "ok"))
    metrics.prompt_tokens.add(("chat", "a"), 10)
    metrics.generation_tokens.add(("chat", "a"), 20)
    metrics.time_to_first_token.observe(("chat", "a"), 0.003)
    metrics.request_latency.observe(("chat", "a"), 200.0)
    found = samples(metrics)
    assert found['gw_served_requests_total{model="chat",outcome="ok",served="a"}'] == 1.0
    assert found['prompt_tokens_total{model="chat",served="a"}'] == 10.0
    assert found['generation_tokens_total{model="chat",served="a"}'] == 20.0
    first, total = "time_to_first_token_seconds", "e2e_request_latency_seconds"
    buckets = {le: found[f'{first}_bucket{{le="{le}",model="chat",served="a"}}'] for le in ("0.001", "0.005", "+Inf")}
    assert buckets == {"0.001": 0.0, "0.005": 1.0, "+Inf": 1.0}
    assert found[f'{total}_bucket{{le="120.0",model="chat",served="a"}}'] == 0.0
    assert found[f'{total}_count{{model="chat",served="a"}}'] == 1.0
    assert found[f'{total}_sum{{model="chat",served="a"}}'] == 200.0


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
    expected = {
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
