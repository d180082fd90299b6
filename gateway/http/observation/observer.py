"""What backends tell of their work on a request: counted in metrics, and recorded in the request's trace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic

from litestar.types import HTTPScope

from backends.observation import Attempt, Phases, Upstream
from backends.transport.url import VIA
from gateway.http.accounting import RequestAccount
from gateway.http.observation.spans import end_trace, request_attributes, span_name
from gateway.observability.metrics import Metrics
from gateway.observability.trace_context import trace_headers, trace_id
from gateway.observability.traces import Trace, UpstreamSpan
from schemas.errors import BackendError, GatewayError


class RequestObserver:
    """Listens to the work on one request.

    Args:
        account: of the request.
    """

    __slots__ = ("_account", "_headers", "_metrics", "_trace")

    def __init__(self, account: RequestAccount) -> None:
        self._account = account
        self._metrics = account.service.metrics
        self._headers: tuple[tuple[str, str], ...] = ()
        self._trace: Trace | None = None

    def trace(self, headers: Mapping[str, str], scope: HTTPScope, route: str) -> None:
        """Take part in the trace that the client's headers name, or else pass it on."""
        traces = self._account.service.traces
        if traces is not None:
            name = f"{scope['method']} {route}"
            self._trace = traces.begin(name, headers, self._account.began, request_attributes(headers, scope, route))
            self._account.trace_id = self._trace.id
        elif "traceparent" in headers:
            self._headers = trace_headers(headers)
            self._account.trace_id = trace_id(self._headers)

    def pass_on(self, gateways: int) -> None:
        """Tell servers how many gateways like this one the request has passed before."""
        self._headers += VIA * gateways

    def attempt(self, upstream: Upstream, model: str) -> Attempt:
        """Count an attempt, and begin its span."""
        counted = _CountedAttempt(self._metrics, upstream.backend, self._headers)
        if self._trace is not None:
            counted.trace = self._trace.attempt(upstream, span_name(self._account.request, model))
            counted.headers = (*counted.trace.headers, *self._headers)
        return counted

    def retried(self, backend: str) -> None:
        """Count a retry."""
        self._metrics.retries.add((backend,))

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        """Count how long sequences waited, and how long the engine worked on them."""
        metrics, labels = self._metrics, self._account.series
        for phases in sequences:
            metrics.queue_time.observe(labels, phases.admitted - phases.queued)
            metrics.prefill_time.observe(labels, phases.first_token - phases.admitted)
            metrics.decode_time.observe(labels, phases.last_token - phases.first_token)
            metrics.inference_time.observe(labels, phases.last_token - phases.admitted)
        if self._trace is not None:
            self._trace.engine_ran(sequences)

    def close(self) -> None:
        """End the trace. The account is closed."""
        if self._trace is not None:
            end_trace(self._trace, self._account)


class _CountedAttempt:
    """One request to an upstream."""

    __slots__ = ("_backend", "_began", "_ended", "_metrics", "headers", "trace")

    def __init__(self, metrics: Metrics, backend: str, headers: tuple[tuple[str, str], ...]) -> None:
        self.headers = headers
        self.trace: UpstreamSpan | None = None
        self._metrics = metrics
        self._backend = backend
        self._began = monotonic()
        self._ended = False

    def answered(self, status: int) -> None:
        """Note the status in the trace; the latency is that of the whole answer."""
        if self.trace is not None:
            self.trace.answered(status)

    def end(self, error: BaseException | None = None) -> None:
        """Count the outcome, once."""
        if self._ended:
            return
        self._ended = True
        outcome = "ok" if error is None else outcome_of(error)
        self._metrics.attempts.add((self._backend, outcome))
        if error is None:
            self._metrics.upstream_latency.observe((self._backend,), monotonic() - self._began)
        if self.trace is not None:
            self.trace.end(outcome)


def outcome_of(error: BaseException | None) -> str:
    """How an attempt ended: "ok", an upstream's fault, an error's kind, or "cancelled"."""
    if error is None:
        return "ok"
    if isinstance(error, BackendError) and error.fault is not None:
        return str(error.fault)
    if isinstance(error, GatewayError):
        return error.kind
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "internal"
