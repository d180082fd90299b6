"""Prometheus metrics, under vLLM's stems where it has them. Each worker counts for itself, labelled by its process id.

Children of labelled metrics are looked up once per route and outcome: a request costs a few microseconds here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backends.base import Backend
from gateway.engine_metrics import EngineCollector

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """All that one worker counts, and what the engines of `backends` tell."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self.registry = CollectorRegistry()
        self._worker = str(os.getpid())
        self.registry.register(EngineCollector(self._worker, backends))
        self._requests = self._counter("gw_requests", "Requests ended", "protocol", "route", "outcome")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens", "model", "served")
        self._generated = self._counter("generation_tokens", "Generated tokens", "model", "served")
        self._served = self._counter("gw_served_requests", "Requests ended, by arm", "model", "served", "outcome")
        self._fallbacks = self._counter("gw_fallbacks", "Requests passed on by a failed arm", "model", "served")
        self._shadows = self._counter("gw_shadow_requests", "Copies for shadows, by end", "model", "served", "outcome")
        self._pairs = self._counter(
            "gw_pairs", "Answers of the first arm given again, by end", "model", "served", "outcome"
        )
        self._first = self._histogram("time_to_first_token_seconds", "Until the first event")
        self._total = self._histogram("e2e_request_latency_seconds", "Until the last event")
        running = Gauge("gw_requests_running", "Requests being answered", ("worker",), registry=self.registry)
        running.labels(self._worker).set_function(lambda: self._running)
        self._running = 0
        self._outcome = cache(lambda *names: self._requests.labels(self._worker, *names))
        self._arm_outcome = cache(lambda *names: self._served.labels(self._worker, *names))
        self._arm = cache(self._of_arm)

    def began(self) -> None:
        """A request is being answered."""
        self._running += 1

    def ended(self, protocol: str, route: str, outcome: str) -> None:
        """It is not any more."""
        self._running -= 1
        self._outcome(protocol, route, outcome).inc()

    def served(self, model: str, arm: str, outcome: str) -> None:
        """A request ended that had reached an arm."""
        self._arm_outcome(model, arm, outcome).inc()

    def fell_back(self, model: str, arm: str) -> None:
        """An arm failed, and the next is asked."""
        self._fallbacks.labels(self._worker, model, arm).inc()

    def shadowed(self, model: str, arm: str, outcome: str) -> None:
        """A copy for a shadow ended, or was not sent ("dropped")."""
        self._shadows.labels(self._worker, model, arm, outcome).inc()

    def paired(self, model: str, arm: str, outcome: str) -> None:
        """A pair was made ("ok"), or could not be."""
        self._pairs.labels(self._worker, model, arm, outcome).inc()

    def answered(self, model: str, arm: str, prompt: int, generated: int, first: float, total: float) -> None:
        """A whole answer was given; times in seconds."""
        prompts, generations, firsts, totals = self._arm(model, arm)
        prompts.inc(prompt)
        generations.inc(generated)
        firsts.observe(first)
        totals.observe(total)

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, ("worker", *labels), registry=self.registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(name, help, ("worker", "model", "served"), buckets=_SECONDS, registry=self.registry)

    def _of_arm(self, model: str, arm: str) -> tuple[Counter, Counter, Histogram, Histogram]:
        labels = (self._worker, model, arm)
        return (
            self._prompt.labels(*labels),
            self._generated.labels(*labels),
            self._first.labels(*labels),
            self._total.labels(*labels),
        )
