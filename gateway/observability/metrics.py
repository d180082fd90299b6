"""Prometheus metrics, under vLLM's stems where it has them. Each worker counts for itself, labelled by process id."""

from __future__ import annotations

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from backends.base import Backend
from gateway.observability.counters import Count, Times
from gateway.observability.engine_metrics import EngineCollector

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ARM = ("model", "served")


class Metrics:
    """All that one worker counts, and what the engines of `backends` tell."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self.registry = CollectorRegistry()
        self._worker = str(os.getpid())
        self.registry.register(EngineCollector(self._worker, backends))
        self._requests = self._count("gw_requests", "Requests ended", "protocol", "route", "outcome")
        self._prompt = self._count("prompt_tokens", "Prompt tokens", *_ARM)
        self._generated = self._count("generation_tokens", "Generated tokens", *_ARM)
        self._served = self._count("gw_served_requests", "Requests ended, by arm", *_ARM, "outcome")
        self._fallbacks = self._count("gw_fallbacks", "Requests passed on by a failed arm", *_ARM)
        self._shadows = self._count("gw_shadow_requests", "Copies for shadows, by end", *_ARM, "outcome")
        self._pairs = self._count("gw_pairs", "Answers of the first arm given again, by end", *_ARM, "outcome")
        self._first = self._times("time_to_first_token_seconds", "Until the first event")
        self._total = self._times("e2e_request_latency_seconds", "Until the last event")
        running = Gauge("gw_requests_running", "Requests being answered", ("worker",), registry=self.registry)
        running.labels(self._worker).set_function(lambda: self._running)
        self._running = 0

    def began(self) -> None:
        """A request is being answered."""
        self._running += 1

    def ended(self, protocol: str, route: str, outcome: str) -> None:
        """It is not any more."""
        self._running -= 1
        self._requests.add((protocol, route, outcome))

    def served(self, model: str, arm: str, outcome: str) -> None:
        """A request ended that had reached an arm."""
        self._served.add((model, arm, outcome))

    def fell_back(self, model: str, arm: str) -> None:
        """An arm failed, and the next is asked."""
        self._fallbacks.add((model, arm))

    def shadowed(self, model: str, arm: str, outcome: str) -> None:
        """A copy for a shadow ended, or was not sent ("dropped")."""
        self._shadows.add((model, arm, outcome))

    def paired(self, model: str, arm: str, outcome: str) -> None:
        """A pair was made ("ok"), or could not be."""
        self._pairs.add((model, arm, outcome))

    def answered(self, model: str, arm: str, prompt: int, generated: int, first: float, total: float) -> None:
        """A whole answer was given; times in seconds."""
        labels = (model, arm)
        self._prompt.add(labels, prompt)
        self._generated.add(labels, generated)
        self._first.add(labels, first)
        self._total.add(labels, total)

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)

    def _count(self, name: str, help: str, *labels: str) -> Count:
        count = Count(name, help, ("worker", *labels), (self._worker,))
        self.registry.register(count)
        return count

    def _times(self, name: str, help: str) -> Times:
        times = Times(name, help, ("worker", *_ARM), _SECONDS, (self._worker,))
        self.registry.register(times)
        return times
