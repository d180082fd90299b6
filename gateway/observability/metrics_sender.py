"""Sends the gateway's metrics to an OpenTelemetry collector. Imported only where that is configured.

The numbers are those of `/metrics`, already summed over workers: one worker sends them for all. It holds a lock, and
when it ends, another one goes on.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from gateway.config.telemetry import Telemetry
from gateway.observability import otlp
from gateway.observability.otlp import SERVICE, endpoint_of, resource_of

log = structlog.get_logger()

_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE


class MetricsSender:
    """Sends all metrics at an interval (`OTEL_METRIC_EXPORT_INTERVAL`, in milliseconds, by default a minute).

    Args:
        settings: the section `telemetry`; what it leaves open is read from the variables `OTEL_*`.
        registry: of the metrics.
        folder: which workers share; None for a worker alone.
    """

    def __init__(self, settings: Telemetry, registry: CollectorRegistry, folder: Path | None) -> None:
        self._registry = registry
        self._folder = folder
        self._resource = resource_of(settings)
        self._exporter = OTLPMetricExporter(endpoint=endpoint_of(settings, "metrics"))
        self._interval = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000) / 1000
        self._lock: int | None = None
        self._since = time.time_ns()
        self._ends = threading.Event()
        # A daemon: a collector that does not answer must not keep the process.
        self._thread = threading.Thread(target=self._run, name="metrics-sender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last numbers, as far as the collector takes them in a moment."""
        self._ends.set()
        self._thread.join(otlp.SHUTDOWN)
        self._exporter.shutdown()
        if self._lock is not None:
            os.close(self._lock)

    def _run(self) -> None:
        while not self._ends.wait(self._interval):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            if not self._is_sender():
                return
            metrics = list(_metrics(self._registry.collect(), self._since, time.time_ns()))
        except OSError as error:  # no descriptor is left for the files of other workers, for instance
            log.error("metrics.not_sent", error=str(error))
            return
        scope = otel.ScopeMetrics(InstrumentationScope(SERVICE), metrics, "")
        self._exporter.export(otel.MetricsData([otel.ResourceMetrics(self._resource, [scope], "")]))

    def _is_sender(self) -> bool:
        """Whether this worker sends for all: the first to hold the lock, which the kernel drops when it ends."""
        if self._folder is None or self._lock is not None:
            return True
        file = os.open(self._folder / "sender.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._lock = file
        # The sums go on over workers, so they all began when the first of them made the file.
        self._since = os.fstat(file).st_mtime_ns
        return True


def _metrics(families: Iterable[Metric], since: int, now: int) -> Iterator[otel.Metric]:
    """Prometheus' families as OpenTelemetry's metrics."""
    for family in families:
        data: Any
        if family.type == "histogram":
            data = otel.Histogram(list(_histograms(family, since, now)), _CUMULATIVE)
        else:
            points = [otel.NumberDataPoint(sample.labels, since, now, sample.value) for sample in family.samples]
            is_sum = family.type == "counter"
            data = otel.Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else otel.Gauge(points)
        if data.data_points:
            yield otel.Metric(family.name, family.documentation, "s" if family.name.endswith("_seconds") else "", data)


def _histograms(family: Metric, since: int, now: int) -> Iterator[otel.HistogramDataPoint]:
    """The series of a histogram: of each, prometheus_client gives the buckets, which are cumulative, and its sum."""
    ends: list[float] = []
    counts: list[int] = []
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            ends.append(float(sample.labels["le"]))
            counts.append(int(sample.value))
        elif sample.name.endswith("_sum"):
            each = [count - before for count, before in zip(counts, (0, *counts), strict=False)]
            # The least and the greatest value are not known; OTLP has them as optional.
            unknown: Any = None
            yield otel.HistogramDataPoint(
                sample.labels, since, now, counts[-1], sample.value, each, ends[:-1], unknown, unknown
            )
            ends, counts = [], []
