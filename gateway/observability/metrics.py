"""Prometheus metrics, under vLLM's names where it has them. Any worker shows the sums over all workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import Backend
from gateway.observability.counters import Counter, Gauge, Histogram, SummingCollector
from gateway.observability.engine_metrics import EngineCollector
from gateway.observability.series_file import SeriesFile

# From a cached first token to a long answer; all latencies share the bounds, so that they can be compared.
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# `model` is the endpoint: the name that clients send, as in vLLM's `model_name`.
_ARM = ("model", "served")


class Metrics:
    """All metrics of the gateway, to be counted where the thing happens.

    Labels are given in the order of their names: protocol, route and outcome for `requests`; protocol and route for
    `ignored_fields`; endpoint and served entity
    for the others, and then the outcome for `served_requests`, `shadow_requests` and `pairs`. Gauges have none.

    Args:
        backends: by name; those that run an engine have metrics of their own.
        folder: shared by all workers; None for a worker alone.
        slot: the name of this worker's files there, which it continues.
    """

    def __init__(self, backends: Mapping[str, Backend], folder: Path | None = None, slot: str = "0") -> None:
        self._file = file = SeriesFile(folder, slot)
        self.requests = Counter(file, "gw_requests", "Finished requests", ("protocol", "route", "outcome"))
        self.ignored_fields = Counter(
            file, "gw_ignored_fields", "Unknown fields of requests that had no effect", ("protocol", "route")
        )
        self.prompt_tokens = Counter(file, "prompt_tokens", "Prompt tokens", _ARM)
        self.generation_tokens = Counter(file, "generation_tokens", "Generated tokens", _ARM)
        self.served_requests = Counter(
            file, "gw_served_requests", "Finished requests by served entity", (*_ARM, "outcome")
        )
        self.fallbacks = Counter(file, "gw_fallbacks", "Requests passed on by a failed served entity", _ARM)
        self.shadow_requests = Counter(file, "gw_shadow_requests", "Copies for shadows by outcome", (*_ARM, "outcome"))
        self.pairs = Counter(
            file, "gw_pairs", "Answers of the first served entity repeated by a paired one", (*_ARM, "outcome")
        )
        self.time_to_first_token = Histogram(
            file, "time_to_first_token_seconds", "Time to the first token of a stream", _ARM, _SECONDS
        )
        self.request_latency = Histogram(file, "e2e_request_latency_seconds", "Time to the last event", _ARM, _SECONDS)
        self.export_lost = Counter(file, "gw_export_rows_lost", "Rows of the export that could not be written", ())
        self.usage_lost = Counter(file, "gw_usage_records_lost", "Records of usage that could not be kept", ())
        self.running = Gauge(file, "gw_requests_running", "Running requests")
        self.tasks = Gauge(file, "gw_event_loop_tasks", "Tasks of the workers' event loops")
        self.refused = Counter(
            file, "gw_refused", "Requests refused, and connections ended, by their form", ("reason",)
        )
        instruments = (
            self.requests,
            self.ignored_fields,
            self.prompt_tokens,
            self.generation_tokens,
            self.served_requests,
            self.fallbacks,
            self.shadow_requests,
            self.pairs,
            self.time_to_first_token,
            self.request_latency,
            self.export_lost,
            self.usage_lost,
            self.running,
            self.tasks,
            self.refused,
        )
        # A registry of its own: the default one would add metrics of this process alone, which differ by worker.
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(backends))
        self._registry.register(SummingCollector(file, instruments))

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Stop counting as a living worker; the counts stay in the sums."""
        self._file.close()
