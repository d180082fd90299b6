"""The section `telemetry`: what is sent to an OpenTelemetry collector."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.config.base import Section


class Telemetry(Section, frozen=True):
    """What is sent to an OpenTelemetry collector. Values that are given here go before the variables `OTEL_*`.

    Attributes:
        endpoint: base URL of the collector's OTLP/HTTP port; None: `OTEL_EXPORTER_OTLP_ENDPOINT`.
        traces: whether spans are sent.
        metrics: whether the metrics of `/metrics` are sent.
        logs: whether what workers log is sent; it is written to standard error all the same.
        service_name: by which the collector knows this gateway; None: `OTEL_SERVICE_NAME`, or "interlingua".
        sample: share of the traces that begin here which are recorded; None: `OTEL_TRACES_SAMPLER`. A client that is
            part of a trace has decided already.
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/]+[^\s]*$")] | None = None
    traces: bool = True
    metrics: bool = False
    logs: bool = False
    service_name: str | None = None
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
