"""What all signals that are sent to a collector have in common: who sends, and where to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry.sdk.resources import SERVICE_NAME, Resource

from gateway.config.telemetry import Telemetry

SERVICE = "interlingua"
"""The service's name by default."""
SHUTDOWN = 2.0
"""Seconds that a worker waits at its end for what is left to be sent."""


def resource_of(settings: Telemetry) -> Resource:
    """Who sends: by the section, or else by `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`."""
    resource = Resource.create()
    named = str(resource.attributes[SERVICE_NAME])
    if settings.service_name is None and not named.startswith("unknown_service"):
        return resource
    return resource.merge(Resource({SERVICE_NAME: settings.service_name or SERVICE}))


def endpoint_of(settings: Telemetry, signal: str) -> str | None:
    """The URL for a signal, "traces", "metrics" or "logs"; None: by `OTEL_EXPORTER_OTLP_*`."""
    return None if settings.endpoint is None else f"{settings.endpoint.rstrip('/')}/v1/{signal}"


def close(shutdown: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Have a provider send what is left, as far as the collector takes it in a moment.

    Args:
        shutdown: the provider's.
        give_up: its exporter's: ends further tries.
    """
    # A daemon: a collector that does not answer must not keep the process.
    sending = threading.Thread(target=shutdown, daemon=True)
    sending.start()
    sending.join(SHUTDOWN)
    if sending.is_alive():
        give_up()
