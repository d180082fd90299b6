"""Metrics of native engines at `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import EngineState
from backends.scripted import ScriptedBackend
from gateway.observability.engine_metrics import EngineCollector


class Engine(ScriptedBackend):
    engine_states: Mapping[str, EngineState | None] = {}


def exposed(models: dict[str, str], **backends: ScriptedBackend) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(backends, models))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_an_engine_has_metrics_under_vllms_names() -> None:
    engine = Engine("local")
    engine.engine_states = {"0": EngineState(3, 2, 0.25, 1, 100, 64, 0.5, 4096, 5, 30, 21, 1, 0.125), "1": None}
    assert exposed({"local": "chat"}, local=engine, scripted=ScriptedBackend("scripted")) == [
        'vllm:num_requests_running{backend="local",engine="0",model_name="chat"} 3.0',
        'vllm:num_requests_waiting{backend="local",engine="0",model_name="chat"} 2.0',
        'vllm:num_requests_swapped{backend="local",engine="0",model_name="chat"} 1.0',
        'vllm:cpu_cache_usage_perc{backend="local",engine="0",model_name="chat"} 0.125',
        'vllm:kv_cache_usage_perc{backend="local",engine="0",model_name="chat"} 0.25',
        'gw_engine_kv_cache_touched_perc{backend="local",engine="0",model_name="chat"} 0.5',
        'gw_engine_resident_memory_bytes{backend="local",engine="0",model_name="chat"} 4096.0',
        'vllm:num_preemptions_total{backend="local",engine="0",model_name="chat"} 1.0',
        'vllm:prefix_cache_queries_total{backend="local",engine="0",model_name="chat"} 100.0',
        'vllm:prefix_cache_hits_total{backend="local",engine="0",model_name="chat"} 64.0',
        'vllm:spec_decode_num_drafts_total{backend="local",engine="0",model_name="chat"} 5.0',
        'vllm:spec_decode_num_draft_tokens_total{backend="local",engine="0",model_name="chat"} 30.0',
        'vllm:spec_decode_num_accepted_tokens_total{backend="local",engine="0",model_name="chat"} 21.0',
        'gw_engine_up{backend="local",engine="0",model_name="chat"} 1.0',
        'gw_engine_up{backend="local",engine="1",model_name="chat"} 0.0',
    ]


def test_without_an_engine_there_are_no_samples() -> None:
    assert exposed({}, local=Engine("local"), scripted=ScriptedBackend("scripted")) == []
