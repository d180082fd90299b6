"""Whether OpenTelemetry is on. Its SDK, of the extra `interlingua[otel]`, is imported only then."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

import structlog

from backends.observation import Phases, Upstream
from gateway.config.telemetry import Telemetry

log = structlog.get_logger()

MISSING = "OpenTelemetry is not installed: install interlingua[otel]"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
"""What a span says."""


class UpstreamSpan(Protocol):
    """The span of one request to an upstream; `headers` are its context, for the upstream."""

    headers: tuple[tuple[str, str], ...]

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        ...

    def end(self, outcome: str) -> None:
        """Note the end and the outcome, "ok" or what failed."""
        ...


class Trace(Protocol):
    """The spans of one request."""

    def attempt(self, upstream: Upstream, name: str) -> UpstreamSpan:
        """Begin the span of a request to an upstream."""
        ...

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        """Note how sequences went through an engine."""
        ...

    def end(self, name: str, attributes: Attributes, answer: Attributes, *, failed: bool) -> None:
        """End all spans.

        Args:
            name: of the spans of engines.
            attributes: of the request's own span.
            answer: of every span that is about the answer: model, tokens, finish reasons.
            failed: whether the request failed, and not by its client's doing.
        """
        ...


class Traces(Protocol):
    """Begins the spans of requests, and sends them."""

    def begin(self, name: str, headers: Mapping[str, str], began: float, attributes: Attributes) -> Trace:
        """Begin the span of a request.

        Args:
            name: of the span.
            headers: the request's; they say which trace it belongs to.
            began: when, on the monotonic clock.
            attributes: known now; the sampler sees them.
        """
        ...

    def close(self) -> None:
        """Send the spans that are left, as far as the collector takes them in a moment."""
        ...


def is_installed() -> bool:
    """Whether the extra is there."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.exporter") is not None


def traces_wanted(settings: Telemetry | None, environment: Mapping[str, str]) -> bool:
    """Whether spans are to be sent: the section says so, or the variables of OpenTelemetry do.

    Without the section, the variables must name a collector or an exporter: by OpenTelemetry's own default every
    process sends to localhost, which would be wrong for a server that nobody has asked to.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if settings is not None:
        return settings.traces and exporter != "none"
    return exporter == "otlp" or (exporter == "" and any(environment.get(name) for name in _ENDPOINTS))


def start_traces(settings: Telemetry | None) -> Traces | None:
    """Begin to send spans, if they are wanted; else None."""
    if not traces_wanted(settings, os.environ):
        return None
    if not is_installed():
        # `gateway check` refuses the section; a variable may be set for all processes of a machine.
        log.warning("telemetry.not_started", why=MISSING)
        return None
    from gateway.observability.tracing import Tracing

    return Tracing(settings or Telemetry())
