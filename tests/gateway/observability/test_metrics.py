"""The metrics of the gateway: what each call counts, and that workers' counts add up."""

from __future__ import annotations

from pathlib import Path

from gateway.observability.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_request_is_running_until_it_ends() -> None:
    metrics = Metrics({})
    assert samples(metrics) == {"gw_requests_running": 0.0}
    metrics.began()
    metrics.began()
    metrics.ended("openai", "chat", "ok")
    assert samples(metrics) == {
        "gw_requests_running": 1.0,
        'gw_requests_total{outcome="ok",protocol="openai",route="chat"}': 1.0,
    }


def test_an_answer_is_counted_by_served_entity() -> None:
    metrics = Metrics({})
    metrics.served("chat", "a", "ok")
    metrics.answered("chat", "a", prompt=10, generated=20, first=0.003, total=200.0)
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
    metrics.fell_back("chat", "a")
    metrics.shadowed("chat", "b", "dropped")
    metrics.paired("chat", "b", "ok")
    found = samples(metrics)
    assert found['gw_fallbacks_total{model="chat",served="a"}'] == 1.0
    assert found['gw_shadow_requests_total{model="chat",outcome="dropped",served="b"}'] == 1.0
    assert found['gw_pairs_total{model="chat",outcome="ok",served="b"}'] == 1.0


def test_any_worker_shows_the_sums_and_a_successor_continues_them(tmp_path: Path) -> None:
    one, two = (Metrics({}, tmp_path, slot) for slot in ("worker-0", "worker-1"))
    for metrics in (one, two, two):
        metrics.began()
        metrics.ended("tgi", "generate", "ok")
    two.began()
    expected = {"gw_requests_running": 1.0, 'gw_requests_total{outcome="ok",protocol="tgi",route="generate"}': 3.0}
    assert samples(one) == samples(two) == expected
    two.close()
    assert samples(one) == expected | {"gw_requests_running": 0.0}
    successor = Metrics({}, tmp_path, "worker-1")
    successor.began()
    successor.ended("tgi", "generate", "ok")
    assert samples(one)['gw_requests_total{outcome="ok",protocol="tgi",route="generate"}'] == 4.0
