"""Prometheus metrics, under vLLM's names where it has them. Any worker shows the sums over all workers.

Names with the prefix `vllm:` mean what they mean there (vLLM 0.11, `vllm/v1/metrics/loggers.py`), for every kind of
backend; those with `gw_` are the gateway's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from backends.base import Backend, Health
from gateway.config import ServedEntity
from gateway.observability.counters import Counter, Gauge, Histogram, Instrument, SummingCollector
from gateway.observability.engine_metrics import EngineCollector
from gateway.observability.series_file import Labels, SeriesFile, Totals
from schemas.ir import FinishReason, Usage

# From a cached first token to a long answer; all latencies share the bounds, so that they can be compared.
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# Between two tokens: finer where models are.
TOKEN_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25),
    *(0.5, 1, 2.5, 5, 10),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
# `model` is the endpoint: the name that clients send.
_ARM = ("model", "served")
# The same under vLLM's label, and the backend that answered.
_ANSWERED = ("model_name", "served", "backend")


class Metrics:
    """All metrics of the gateway, to be counted where the thing happens.

    Labels are given in the order of their names, which stand beside each metric.

    Args:
        backends: by name; those that run an engine have metrics of their own.
        folder: shared by all workers; None for a worker alone.
        slot: the name of this worker's files there, which it continues.
    """

    def __init__(self, backends: Mapping[str, Backend], folder: Path | None = None, slot: str = "0") -> None:
        self._file = SeriesFile(folder, slot)
        self.folder = folder
        self._instruments: list[Instrument] = []
        self._models: dict[str, str] = {}
        self._count_requests()
        self._count_answers()
        self._count_backends()
        # A registry of its own: the default one would add metrics of this process alone, which differ by worker.
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(backends, self._models))
        self.registry.register(SummingCollector(self._file, self._instruments))

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self.registry)

    def totals(self, *, living: bool = False) -> Totals:
        """All series, summed over all workers, or over the `living` ones, as for gauges."""
        return self._file.read(living=living)

    def close(self) -> None:
        """Stop counting as a living worker; the counts stay in the sums."""
        self._file.close()

    def name_engines(self, endpoints: Mapping[str, Sequence[ServedEntity]]) -> None:
        """Show each engine as the first of the endpoints that it serves; given are their served entities."""
        self._models.clear()
        for name, entities in endpoints.items():
            for entity in entities:
                self._models.setdefault(entity.backend, name)

    def note_health(self, health: Mapping[str, Health]) -> None:
        """Show which backends are ready to this worker, and to which others are preferred."""
        for backend, found in health.items():
            is_ready = found.status == "ready"
            self.up.set(float(is_ready and not found.detail), (backend,))
            self.breaker.set(float(is_ready and bool(found.detail)), (backend,))

    def count_answer(
        self, labels: Labels, usage: Usage, duration: float, first_token: float | None, last_token: float
    ) -> None:
        """Count a complete answer; times are seconds since its request began, `first_token` None if not streamed."""
        prompt, generated = usage.prompt_tokens, usage.completion_tokens
        self.prompt_tokens.add(labels, prompt)
        self.generation_tokens.add(labels, generated)
        self.request_prompt_tokens.observe(labels, prompt)
        self.request_generation_tokens.observe(labels, generated)
        self.request_latency.observe(labels, duration)
        if first_token is not None:
            self.time_to_first_token.observe(labels, first_token)
            if generated > 1:
                self.time_per_output_token.observe(labels, (last_token - first_token) / (generated - 1))

    def count_choices(self, labels: Labels, reasons: Sequence[FinishReason], outcome: str) -> None:
        """Count the choices of an answer by vLLM's reasons: stop, length, abort (the client left), error."""
        for reason in reasons:
            self.choices.add((*labels, "length" if reason is FinishReason.LENGTH else "stop"))
        if outcome != "ok" and not reasons:
            self.choices.add((*labels, "abort" if outcome in ("client_gone", "cancelled") else "error"))

    def _count_requests(self) -> None:
        counter, gauge = self._counter, self._gauge
        self.requests = counter("gw_requests", "Finished requests", "protocol", "route", "outcome")
        self.ignored_fields = counter(
            "gw_ignored_fields", "Unknown fields of requests that had no effect", "protocol", "route"
        )
        self.refused = counter("gw_refused", "Requests refused, and connections ended, by their form", "reason")
        self.limited = counter("gw_rate_limited", "Requests refused for a limit", "model", "key")
        self.running = gauge("gw_requests_running", "Running requests")
        self.tasks = gauge("gw_event_loop_tasks", "Tasks of the workers' event loops")
        self.export_lost = counter("gw_export_rows_lost", "Rows of the export that could not be written")
        self.usage_lost = counter("gw_usage_records_lost", "Records of usage that could not be kept")

    def _count_answers(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.served_requests = counter("gw_served_requests", "Finished requests by served entity", *_ARM, "outcome")
        self.fallbacks = counter("gw_fallbacks", "Requests passed on by a failed served entity", *_ARM)
        self.shadow_requests = counter("gw_shadow_requests", "Copies for shadows by outcome", *_ARM, "outcome")
        self.pairs = counter(
            "gw_pairs", "Answers of the first served entity repeated by a paired one", *_ARM, "outcome"
        )
        self.cost = counter("gw_cost", "Cost of answers, by the prices of served entities", *_ARM)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens", *_ANSWERED)
        self.generation_tokens = counter("vllm:generation_tokens", "Generated tokens", *_ANSWERED)
        self.choices = counter(
            "vllm:request_success", "Choices that ended, by their reason", *_ANSWERED, "finished_reason"
        )
        self.time_to_first_token = histogram(
            "vllm:time_to_first_token_seconds", "Time to the first token of a stream", SECONDS
        )
        self.inter_token_latency = histogram(
            "vllm:inter_token_latency_seconds", "Time between two chunks of a stream", TOKEN_SECONDS
        )
        self.time_per_output_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token of a stream", TOKEN_SECONDS
        )
        self.request_latency = histogram("vllm:e2e_request_latency_seconds", "Time to the last event", SECONDS)
        self.queue_time = histogram("vllm:request_queue_time_seconds", "Wait for the engine's batch", SECONDS)
        self.prefill_time = histogram(
            "vllm:request_prefill_time_seconds", "From the engine's batch to the first token", SECONDS
        )
        self.decode_time = histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last one", SECONDS
        )
        self.inference_time = histogram(
            "vllm:request_inference_time_seconds", "From the engine's batch to the last token", SECONDS
        )
        self.request_prompt_tokens = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self.request_generation_tokens = histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request", _TOKENS
        )

    def _count_backends(self) -> None:
        self.attempts = self._counter(
            "gw_upstream_attempts", "Requests sent to a server by their outcome", "backend", "outcome"
        )
        self.retries = self._counter("gw_upstream_retries", "Requests sent to a server again", "backend")
        self.upstream_latency = Histogram(
            self._file, "gw_upstream_latency_seconds", "Time to a server's whole answer", ("backend",), SECONDS
        )
        self._instruments.append(self.upstream_latency)
        self.up = self._gauge("gw_backend_up", "Share of workers to which a backend is ready", "backend", mean=True)
        self.breaker = self._gauge(
            "gw_backend_breaker_open", "Share of workers whose breaker of a backend is open", "backend", mean=True
        )

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        made = Counter(self._file, name, help, labels)
        self._instruments.append(made)
        return made

    def _gauge(self, name: str, help: str, *labels: str, mean: bool = False) -> Gauge:
        made = Gauge(self._file, name, help, labels, mean=mean)
        self._instruments.append(made)
        return made

    def _histogram(self, name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
        made = Histogram(self._file, name, help, _ANSWERED, bounds)
        self._instruments.append(made)
        return made
