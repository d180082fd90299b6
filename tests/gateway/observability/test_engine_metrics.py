"""Metrics of native engines at `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import EngineState
from backends.scripted import ScriptedBackend
from gateway.observability.engine_metrics import EngineCollector


class Engine(ScriptedBackend):
    engine_state: EngineState | None = None


def exposed(**backends: ScriptedBackend) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(backends))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_an_engine_has_metrics_under_vllms_names() -> None:
    engine = Engine("local")
    engine.engine_state = EngineState(3, 2, 0.25, 1, 100, 64, 0.5, 4096, 5, 30, 21)
    assert exposed(local=engine, scripted=ScriptedBackend("scripted")) == [
        'num_requests_running{backend="local"} 3.0',
        'num_requests_waiting{backend="local"} 2.0',
        'kv_cache_usage_perc{backend="local"} 0.25',
        'kv_cache_touched_perc{backend="local"} 0.5',
        'engine_resident_memory_bytes{backend="local"} 4096.0',
        'num_preemptions_total{backend="local"} 1.0',
        'prefix_cache_queries_total{backend="local"} 100.0',
        'prefix_cache_hits_total{backend="local"} 64.0',
        'spec_decode_num_drafts_total{backend="local"} 5.0',
        'spec_decode_num_draft_tokens_total{backend="local"} 30.0',
        'spec_decode_num_accepted_tokens_total{backend="local"} 21.0',
    ]


def test_without_an_engine_there_are_no_samples() -> None:
    assert exposed(local=Engine("local"), scripted=ScriptedBackend("scripted")) == []
