"""What backends tell of their work on a request: counted in metrics, and recorded in the request's trace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from backends.observation import Attempt, Phases, Upstream
from gateway.http.accounting import RequestAccount
from gateway.observability.metrics import Metrics
from schemas.errors import BackendError, GatewayError


class RequestObserver:
    """Listens to the work on one request.

    Args:
        account: of the request.

    Attributes:
        headers: W3C trace context that is passed on to upstreams.
    """

    __slots__ = ("_account", "_metrics", "headers")

    def __init__(self, account: RequestAccount) -> None:
        self._account = account
        self._metrics = account.service.metrics
        self.headers: tuple[tuple[str, str], ...] = ()

    def attempt(self, upstream: Upstream, model: str) -> Attempt:  # noqa: ARG002 - `Observer`
        """Count an attempt."""
        return _CountedAttempt(self._metrics, upstream.backend, self.headers)

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


class _CountedAttempt:
    """One request to an upstream."""

    __slots__ = ("_backend", "_began", "_ended", "_metrics", "headers")

    def __init__(self, metrics: Metrics, backend: str, headers: tuple[tuple[str, str], ...]) -> None:
        self.headers = headers
        self._metrics = metrics
        self._backend = backend
        self._began = monotonic()
        self._ended = False

    def answered(self, status: int) -> None:
        """Its latency is that of the whole answer."""

    def end(self, error: BaseException | None = None) -> None:
        """Count the outcome, once."""
        if self._ended:
            return
        self._ended = True
        self._metrics.attempts.add((self._backend, outcome_of(error)))
        if error is None:
            self._metrics.upstream_latency.observe((self._backend,), monotonic() - self._began)


def outcome_of(error: BaseException | None) -> str:
    """How an attempt ended: "ok", an upstream's fault, an error's kind, or "cancelled"."""
    if error is None:
        return "ok"
    if isinstance(error, BackendError) and error.fault is not None:
        return str(error.fault)
    if isinstance(error, GatewayError):
        return error.kind
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "internal"
