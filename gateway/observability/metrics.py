"""Prometheus metrics, under vLLM's names where it has them. Any worker shows the sums over all workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import Backend
from gateway.observability.counters import Counter, Gauge, Histogram, SummingCollector
from gateway.observability.engine_metrics import EngineCollector
from gateway.observability.series_file import SeriesFile

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ARM = ("model", "served")


class Metrics:
    """All metrics of the gateway.

    Args:
        backends: by name; those that run an engine have metrics of their own.
        folder: shared by all workers; None for a worker alone.
        slot: the name of this worker's files there, which it continues.
    """

    def __init__(self, backends: Mapping[str, Backend], folder: Path | None = None, slot: str = "0") -> None:
        self._file = file = SeriesFile(folder, slot)
        self._requests = Counter(file, "gw_requests", "Finished requests", ("protocol", "route", "outcome"))
        self._prompt = Counter(file, "prompt_tokens", "Prompt tokens", _ARM)
        self._generated = Counter(file, "generation_tokens", "Generated tokens", _ARM)
        self._served = Counter(file, "gw_served_requests", "Finished requests by served entity", (*_ARM, "outcome"))
        self._fallbacks = Counter(file, "gw_fallbacks", "Requests passed on by a failed served entity", _ARM)
        self._shadows = Counter(file, "gw_shadow_requests", "Copies for shadows by outcome", (*_ARM, "outcome"))
        self._pairs = Counter(
            file, "gw_pairs", "Answers of the first served entity repeated by a paired one", (*_ARM, "outcome")
        )
        self._first = Histogram(file, "time_to_first_token_seconds", "Time to the first event", _ARM, _SECONDS)
        self._total = Histogram(file, "e2e_request_latency_seconds", "Time to the last event", _ARM, _SECONDS)
        self._running = Gauge(file, "gw_requests_running", "Running requests")
        instruments = (
            self._requests,
            self._prompt,
            self._generated,
            self._served,
            self._fallbacks,
            self._shadows,
            self._pairs,
            self._first,
            self._total,
            self._running,
        )
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(backends))
        self._registry.register(SummingCollector(file, instruments))

    def began(self) -> None:
        """Increment the running gauge."""
        self._running.add(1.0)

    def ended(self, protocol: str, route: str, outcome: str) -> None:
        """Decrement the running gauge, and count the outcome."""
        self._running.add(-1.0)
        self._requests.add((protocol, route, outcome))

    def served(self, model: str, arm: str, outcome: str) -> None:
        """Count the outcome of a request that had reached a served entity."""
        self._served.add((model, arm, outcome))

    def fell_back(self, model: str, arm: str) -> None:
        """Count a failure of a served entity after which the next one is asked."""
        self._fallbacks.add((model, arm))

    def shadowed(self, model: str, arm: str, outcome: str) -> None:
        """Count a copy for a shadow that ended, or was not sent ("dropped")."""
        self._shadows.add((model, arm, outcome))

    def paired(self, model: str, arm: str, outcome: str) -> None:
        """Count a pair that was made ("ok"), or why it could not be."""
        self._pairs.add((model, arm, outcome))

    def answered(self, model: str, arm: str, prompt: int, generated: int, first: float, total: float) -> None:
        """Count the tokens and times (seconds) of a complete answer."""
        labels = (model, arm)
        self._prompt.add(labels, prompt)
        self._generated.add(labels, generated)
        self._first.observe(labels, first)
        self._total.observe(labels, total)

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Stop counting as a living worker; the counts stay in the sums."""
        self._file.close()
