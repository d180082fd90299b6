"""A receiver of OTLP over HTTP, which decodes what it gets with OpenTelemetry's own protobuf classes.

It gets what a gateway sends, or what a real collector hands on (`tests/application/test_telemetry.py`).
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """A span, with its attributes as Python values."""

    span: Span
    service: str

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def kind(self) -> str:
        return Span.SpanKind.Name(self.span.kind).removeprefix("SPAN_KIND_")

    @property
    def seconds(self) -> float:
        return (self.span.end_time_unix_nano - self.span.start_time_unix_nano) / 1e9

    @property
    def attributes(self) -> dict[str, Any]:
        return attributes_of(self.span)


@dataclass
class Collector:
    """What was received; of metrics, each message by the names of its metrics."""

    metrics: list[dict[str, Metric]] = field(default_factory=list)
    logs: list[LogRecord] = field(default_factory=list)
    spans: list[Received] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> Received:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def attributes_of(sent: Span | LogRecord) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in sent.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    made.metrics.append({metric.name: metric for metric in sent.scope_metrics[0].metrics})
            elif self.path == "/v1/logs":
                for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                    made.logs += [record for scope in logs.scope_logs for record in scope.log_records]
            else:
                assert self.path == "/v1/traces"
                self._take_spans(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def _take_spans(self, body: bytes) -> None:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {each.key: _value(each.value) for each in resource.resource.attributes}["service.name"]
                for scope in resource.scope_spans:
                    made.spans += [Received(span, service) for span in scope.spans]

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
