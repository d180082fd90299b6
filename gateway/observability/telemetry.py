"""Whether OpenTelemetry is on. Its SDK, of the extra `interlingua[otel]`, is imported only then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import structlog

from gateway.config.telemetry import Telemetry
from gateway.observability.traces import Traces

if TYPE_CHECKING:
    from gateway.observability.metrics import Metrics

log = structlog.get_logger()

MISSING = "OpenTelemetry is not installed: install interlingua[otel]"

Signal = Literal["traces", "metrics", "logs"]


class Sender(Protocol):
    """Sends a signal by itself."""

    def close(self) -> None:
        """Send what is left, as far as the collector takes it in a moment."""
        ...


def is_installed() -> bool:
    """Whether the extra is there."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.exporter") is not None


def is_wanted(signal: Signal, settings: Telemetry | None, environment: Mapping[str, str]) -> bool:
    """Whether a signal is to be sent: the section says so, or the variables of OpenTelemetry do.

    Without the section, the variables must name an exporter or, for traces, a collector: by OpenTelemetry's own default
    every process sends to localhost, which would be wrong for a server that nobody has asked to.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower()
    if settings is not None:
        return getattr(settings, signal) is True and exporter != "none"
    # Metrics and logs have a page and standard error: they are sent where a collector is named for them alone.
    own = [f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"]
    collectors = [*own, "OTEL_EXPORTER_OTLP_ENDPOINT"] if signal == "traces" else own
    return exporter == "otlp" or (exporter == "" and any(environment.get(name) for name in collectors))


class Started(NamedTuple):
    """What is sent: each is None if it is not."""

    traces: Traces | None = None
    metrics: Sender | None = None
    logs: Sender | None = None

    def close(self) -> None:
        """Send what is left, as far as the collector takes it in a moment."""
        for each in self:
            if each is not None:
                each.close()


def start(settings: Telemetry | None, metrics: Metrics) -> Started:
    """Begin to send what is wanted."""
    signals: tuple[Signal, ...] = ("traces", "metrics", "logs")
    wanted = [signal for signal in signals if is_wanted(signal, settings, os.environ)]
    if not wanted:
        return Started()
    if not is_installed():
        # `gateway check` refuses the section; a variable may be set for all processes of a machine.
        log.warning("telemetry.not_started", why=MISSING)
        return Started()
    from gateway.observability.logs_sender import LogsSender
    from gateway.observability.metrics_sender import MetricsSender
    from gateway.observability.tracing import Tracing

    given = settings or Telemetry()
    return Started(
        Tracing(given) if "traces" in wanted else None,
        MetricsSender(given, metrics.registry, metrics.folder) if "metrics" in wanted else None,
        LogsSender(given) if "logs" in wanted else None,
    )
