"""What is told of native engines at `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import EngineState
from backends.scripted import ScriptedBackend
from gateway.observability.engine_metrics import EngineCollector


class Engine(ScriptedBackend):
    engine_state: EngineState | None = None


def told(**backends: ScriptedBackend) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector("7", backends))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_an_engine_is_told_of_under_vllms_stems() -> None:
    engine = Engine("local")
    engine.engine_state = EngineState(3, 2, 0.25, 1, 100, 64)
    assert told(local=engine, scripted=ScriptedBackend("scripted")) == [
        'num_requests_running{backend="local",worker="7"} 3.0',
        'num_requests_waiting{backend="local",worker="7"} 2.0',
        'kv_cache_usage_perc{backend="local",worker="7"} 0.25',
        'num_preemptions_total{backend="local",worker="7"} 1.0',
        'prefix_cache_queries_total{backend="local",worker="7"} 100.0',
        'prefix_cache_hits_total{backend="local",worker="7"} 64.0',
    ]


def test_where_there_is_no_engine_nothing_is_told() -> None:
    assert told(local=Engine("local"), scripted=ScriptedBackend("scripted")) == []
