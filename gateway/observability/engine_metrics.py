"""Prometheus metrics of native engines, under vLLM's stems: read off the backends when somebody asks.

They are the engine's, not the worker's: every worker tells the same, as it last heard from the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.base import Backend, EngineState, RunsEngine

_GAUGES = {
    "num_requests_running": ("Sequences in the engine's batch", "running"),
    "num_requests_waiting": ("Sequences that wait for the engine", "waiting"),
    "kv_cache_usage_perc": ("Share of the KV cache in use, 0 to 1", "kv_usage"),
}
_COUNTERS = {
    "num_preemptions": ("Sequences that gave their KV cache back to others", "preemptions"),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache", "prefix_queries"),
    "prefix_cache_hits": ("Tokens found in the prefix cache", "prefix_hits"),
}
_LABELS = ("worker", "backend")


class EngineCollector(Collector):
    """Tells of those of `backends` that run an engine."""

    def __init__(self, worker: str, backends: Mapping[str, Backend]) -> None:
        self._worker = worker
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        states = self._states()
        for families, kind in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, (told, field) in families.items():
                family = kind(name, told, labels=_LABELS)
                for backend, state in states.items():
                    family.add_metric((self._worker, backend), getattr(state, field))
                yield family

    def _states(self) -> dict[str, EngineState]:
        engines = {name: backend for name, backend in self._backends.items() if isinstance(backend, RunsEngine)}
        states = {name: backend.engine_state for name, backend in engines.items()}
        return {name: state for name, state in states.items() if state is not None}
