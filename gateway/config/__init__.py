"""The configuration: its sections as structs (`server`, `endpoint`), and the file that holds them (`file`)."""

from gateway.config.aliases import aliases_of, wrong_aliases
from gateway.config.base import ConfigError, Section, nearest
from gateway.config.endpoint import (
    FEEDBACK_METRICS,
    UNITS,
    Endpoint,
    Experiment,
    Fallback,
    FeedbackMetric,
    Guardrail,
    MetricGuardrail,
    Paired,
    Ramp,
    Routing,
    ServedEntity,
    Shadow,
    Task,
    wrong_endpoint,
)
from gateway.config.file import BUNDLED, Config, default, load, parse, remote
from gateway.config.limit import EndpointLimit, Limit, Price, Window
from gateway.config.server import Export, Limits, Listener, Mount, ServerSection

__all__ = [
    "BUNDLED",
    "FEEDBACK_METRICS",
    "UNITS",
    "Config",
    "ConfigError",
    "Endpoint",
    "EndpointLimit",
    "Experiment",
    "Export",
    "Fallback",
    "FeedbackMetric",
    "Guardrail",
    "Limit",
    "Limits",
    "Listener",
    "MetricGuardrail",
    "Mount",
    "Paired",
    "Price",
    "Ramp",
    "Routing",
    "Section",
    "ServedEntity",
    "ServerSection",
    "Shadow",
    "Task",
    "Window",
    "aliases_of",
    "default",
    "load",
    "nearest",
    "parse",
    "remote",
    "wrong_aliases",
    "wrong_endpoint",
]
