"""Prometheus metrics of native engines, under vLLM's names.

All workers share an engine, and the engine reports its state to each of them: the worker that is asked for `/metrics`
shows the state that it received last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.base import Backend, EngineState, RunsEngine

_GAUGES = {
    "vllm:num_requests_running": ("Sequences in the engine's batch", "running"),
    "vllm:num_requests_waiting": ("Sequences that wait for the engine", "waiting"),
    "vllm:num_requests_swapped": ("Sequences that wait with their pages in the host's memory", "swapped"),
    "vllm:cpu_cache_usage_perc": ("Share of the swap space in use, 0 to 1", "swap_usage"),
    "vllm:kv_cache_usage_perc": ("Share of the KV cache in use, 0 to 1", "kv_usage"),
    "gw_engine_kv_cache_touched_perc": ("Share of the KV cache whose memory is taken, 0 to 1", "kv_touched"),
    "gw_engine_resident_memory_bytes": ("Memory of the engine's process", "resident_bytes"),
}
_COUNTERS = {
    "vllm:num_preemptions": ("Sequences preempted, whose KV cache was freed for others", "preemptions"),
    "vllm:prefix_cache_queries": ("Tokens looked up in the prefix cache", "prefix_queries"),
    "vllm:prefix_cache_hits": ("Tokens found in the prefix cache", "prefix_hits"),
    "vllm:spec_decode_num_drafts": ("Steps of sequences that verified draft tokens", "drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Draft tokens that were verified", "draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Draft tokens that were right", "accepted_tokens"),
}

_LABELS = ("model_name", "backend", "engine")


class EngineCollector(Collector):
    """Exposes the state of the engines behind `backends`.

    Args:
        backends: by name.
        models: the endpoint that an engine is shown as, by its backend's name; may change. By default that name.
    """

    def __init__(self, backends: Mapping[str, Backend], models: Mapping[str, str]) -> None:
        self._backends = backends
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; of engines that have not reported yet there are none."""
        # Not summed over workers: each worker knows the same engine's state, and a sum would count it N times.
        states = self._states()
        for families, kind in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, (help, field) in families.items():
                family = kind(name, help, labels=_LABELS)
                for labels, state in states.items():
                    if state is not None:
                        family.add_metric(labels, getattr(state, field))
                yield family
        up = GaugeMetricFamily("gw_engine_up", "Whether the engine answers: 1 or 0", labels=_LABELS)
        for labels, state in states.items():
            up.add_metric(labels, float(state is not None))
        yield up

    def _states(self) -> dict[tuple[str, ...], EngineState | None]:
        """The states of all engines, by their labels."""
        return {
            (self._models.get(name, name), name, engine): state
            for name, backend in self._backends.items()
            if isinstance(backend, RunsEngine)
            for engine, state in backend.engine_states.items()
        }
