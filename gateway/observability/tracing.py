"""Spans of requests, sent to an OpenTelemetry collector. Imported only where that is configured.

Names and attributes are those of OpenTelemetry's semantic conventions, 1.37 and later, for HTTP servers and generative
AI. A request is a SERVER span; each request to an upstream is a CLIENT span below it, whose context the upstream gets;
a sequence of a native engine is an INTERNAL span with the children `queue`, `prefill` and `decode`.

Strategy: spans are begun where their context is needed, and get their attributes and ends when the request has ended,
outside of its path to the client. A batch processor sends them from a thread; its queue is bounded, and what a slow
collector does not take is dropped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from backends.observation import Phases, Upstream
from gateway.config.telemetry import Telemetry
from gateway.observability.otlp import SERVICE, close, endpoint_of, resource_of
from gateway.observability.traces import Attributes

PROVIDER = SERVICE
"""`gen_ai.provider.name` of the project's own engine."""

_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Begins the spans of requests, and sends them.

    Args:
        settings: the section `telemetry`; what it leaves open is read from the variables `OTEL_*`.
    """

    def __init__(self, settings: Telemetry) -> None:
        # None: the sampler of `OTEL_TRACES_SAMPLER`.
        sampler = None if settings.sample is None else ParentBasedTraceIdRatio(settings.sample)
        # At exit the provider would wait for a collector that does not answer: `close` bounds that.
        self._provider = TracerProvider(sampler=sampler, resource=resource_of(settings), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(endpoint=endpoint_of(settings, "traces"))
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(PROVIDER)

    def begin(self, name: str, headers: Mapping[str, str], began: float, attributes: Attributes) -> RequestTrace:
        """Begin the span of a request (`Traces`)."""
        return RequestTrace(self._tracer, name, headers, began, attributes)

    def close(self) -> None:
        """Send the spans that are left, as far as the collector takes them in a moment."""
        close(self._provider.shutdown, self._exporter.shutdown)


class RequestTrace:
    """The spans of one request. Times are seconds of the monotonic clock.

    Attributes:
        id: of the trace, 32 hexadecimal digits.
    """

    __slots__ = ("_asked", "_attempts", "_context", "_offset", "_phases", "_span", "_tracer", "id")

    def __init__(
        self, tracer: Tracer, name: str, headers: Mapping[str, str], began: float, attributes: Attributes
    ) -> None:
        self._tracer = tracer
        # Spans have the time of day; everything here is measured by the clock that nobody sets.
        self._offset = time.time_ns() - time.monotonic_ns()
        parent = _PROPAGATOR.extract(headers)
        self._span = tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=self._at(began))
        self.id = f"{self._span.get_span_context().trace_id:032x}"
        self._context = set_span_in_context(self._span)
        self._attempts: list[AttemptTrace] = []
        self._asked: Counter[str] = Counter()
        self._phases: list[Phases] = []

    def attempt(self, upstream: Upstream, name: str) -> AttemptTrace:
        """Begin the span of a request to an upstream."""
        attributes: dict[str, str | int] = {
            "gen_ai.provider.name": upstream.provider,
            "server.address": upstream.address,
            "server.port": upstream.port,
            "interlingua.backend": upstream.backend,
        }
        # Not those to another server, which was asked because this one failed.
        if resent := self._asked[upstream.backend]:
            attributes["http.request.resend_count"] = resent
        self._asked[upstream.backend] += 1
        made = AttemptTrace(self._tracer.start_span(name, self._context, SpanKind.CLIENT, attributes))
        self._attempts.append(made)
        return made

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        """Note how sequences went through an engine."""
        self._phases += sequences

    def end(self, name: str, attributes: Attributes, answer: Attributes, *, failed: bool) -> None:
        """End all spans (`Trace`)."""
        span = self._span
        for attempt in self._attempts:
            attempt.finish(answer)
        if span.is_recording():
            for phases in self._phases:
                self._engine_spans(name, phases, answer)
            span.set_attributes({"gen_ai.provider.name": PROVIDER, **answer, **attributes})
            if failed:
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _engine_spans(self, name: str, phases: Phases, answer: Attributes) -> None:
        own = {"gen_ai.provider.name": PROVIDER, **answer, "gen_ai.usage.output_tokens": phases.tokens}
        whole = self._tracer.start_span(name, self._context, SpanKind.INTERNAL, own, start_time=self._at(phases.queued))
        within = set_span_in_context(whole)
        for phase, start, end in (
            ("queue", phases.queued, phases.admitted),
            ("prefill", phases.admitted, phases.first_token),
            ("decode", phases.first_token, phases.last_token),
        ):
            self._tracer.start_span(phase, within, start_time=self._at(start)).end(self._at(end))
        whole.end(self._at(phases.last_token))

    def _at(self, seconds: float) -> int:
        """The time of day in nanoseconds."""
        return int(seconds * 1e9) + self._offset


class AttemptTrace:
    """The span of one request to an upstream.

    Attributes:
        headers: its context, for the upstream.
    """

    __slots__ = ("_ended", "_failed", "_span", "headers")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._ended: int | None = None
        self._failed = False
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span))
        self.headers = tuple(carrier.items())

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        self._span.set_attribute("http.response.status_code", status)

    def end(self, outcome: str) -> None:
        """Note the end and the outcome, "ok" or what failed."""
        self._ended = time.time_ns()
        if outcome != "ok":
            self._failed = True
            self._span.set_attribute("error.type", outcome)
            if outcome != "cancelled":
                self._span.set_status(Status(StatusCode.ERROR))

    def finish(self, answer: Attributes) -> None:
        """End the span; the attributes of the answer are those of the attempt that did not fail."""
        if not self._failed:
            self._span.set_attributes(answer)
        self._span.end(self._ended)
