"""Sends log events to an OpenTelemetry collector. Imported only where that is configured.

Strategy: each event is a record with the event's name and its keys as attributes, in a bounded queue. A thread of the
SDK sends them; what a slow collector does not take is dropped. Standard error gets every line as before.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from gateway.config.telemetry import Telemetry
from gateway.observability import logging
from gateway.observability.otlp import SERVICE, close, endpoint_of, resource_of

_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
_OWN_FIELDS = frozenset(("event", "level", "timestamp", "trace_id", "exc_info"))
"""Keys of events for which records have fields of their own."""


class LogsSender:
    """Sends the events that this process logs.

    Args:
        settings: the section `telemetry`; what it leaves open is read from the variables `OTEL_*`.
    """

    def __init__(self, settings: Telemetry) -> None:
        # At exit the provider would wait for a collector that does not answer: `close` bounds that.
        self._provider = LoggerProvider(resource_of(settings), shutdown_on_exit=False)
        self._exporter = OTLPLogExporter(endpoint=endpoint_of(settings, "logs"))
        self._provider.add_log_record_processor(BatchLogRecordProcessor(self._exporter))
        self._logger = self._provider.get_logger(SERVICE)
        logging.RECEIVERS.append(self._send)

    def close(self) -> None:
        """Send the records that are left, as far as the collector takes them in a moment."""
        logging.RECEIVERS.remove(self._send)
        close(self._provider.shutdown, self._exporter.shutdown)

    def _send(self, event: Mapping[str, Any]) -> None:
        level = event["level"]
        attributes = {name: _value(value) for name, value in event.items() if name not in _OWN_FIELDS}
        if (failure := event.get("exc_info")) is not None:
            attributes |= _exception(failure)
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                context=_context(event.get("trace_id")),
                severity_number=_SEVERITIES[level],
                severity_text=level.upper(),
                body=event["event"],
                attributes={name: value for name, value in attributes.items() if value is not None},
                event_name=event["event"],
            )
        )


def _context(trace_id: str | None) -> Context:
    """A context of this trace: the spans of a request have ended when its line is written."""
    if trace_id is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(SpanContext(int(trace_id, 16), 0, is_remote=False)), Context())


def _value(value: Any) -> Any:
    """As an attribute: lists of texts, numbers and texts as they are, anything else as its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return tuple([str(each) for each in value])
    return str(value)


def _exception(failure: Any) -> dict[str, Any]:
    """The attributes of an exception, as structlog has it: the exception, `sys.exc_info()`, or True for the present."""
    if not isinstance(failure, BaseException):
        failure = (failure if isinstance(failure, tuple) else sys.exc_info())[1]
    if failure is None:
        return {}
    return {
        "exception.type": type(failure).__qualname__,
        "exception.message": str(failure),
        "exception.stacktrace": "".join(traceback.format_exception(failure)),
    }
