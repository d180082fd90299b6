"""The configuration: its sections as structs (`server`, `endpoint`), and the file that holds them (`file`)."""

from gateway.config.aliases import aliases_of, wrong_aliases
from gateway.config.base import ConfigError, Section, nearest
from gateway.config.batches import BatchesSection
from gateway.config.endpoint import (
    FEEDBACK_METRICS,
    TEXTLESS,
    UNITS,
    Cache,
    Endpoint,
    Experiment,
    Fallback,
    FeedbackMetric,
    FilterSettings,
    Guardrail,
    MetricGuardrail,
    Paired,
    Ramp,
    Routing,
    ServedEntity,
    Shadow,
    lacks_package,
    wrong_endpoint,
)
from gateway.config.file import (
    BUNDLED,
    Config,
    Source,
    default,
    endpoints_for,
    examine_file,
    load,
    missing_endpoints,
    parse,
    remote,
)
from gateway.config.limit import BILLION, EndpointLimit, Limit, Price, Window
from gateway.config.positions import KeyPath
from gateway.config.server import Export, Grpc, Limits, Listener, Mount, Role, ServerSection
from gateway.config.state import StateSection
from gateway.config.structure import Problem, examine, show
from gateway.config.telemetry import Telemetry
from gateway.config.usage import UsageSection
from schemas.catalog import Task

__all__ = [
    "BILLION",
    "BUNDLED",
    "FEEDBACK_METRICS",
    "TEXTLESS",
    "UNITS",
    "BatchesSection",
    "Cache",
    "Config",
    "ConfigError",
    "Endpoint",
    "EndpointLimit",
    "Experiment",
    "Export",
    "Fallback",
    "FeedbackMetric",
    "FilterSettings",
    "Grpc",
    "Guardrail",
    "KeyPath",
    "Limit",
    "Limits",
    "Listener",
    "MetricGuardrail",
    "Mount",
    "Paired",
    "Price",
    "Problem",
    "Ramp",
    "Role",
    "Routing",
    "Section",
    "ServedEntity",
    "ServerSection",
    "Shadow",
    "Source",
    "StateSection",
    "Task",
    "Telemetry",
    "UsageSection",
    "Window",
    "aliases_of",
    "default",
    "endpoints_for",
    "examine",
    "examine_file",
    "lacks_package",
    "load",
    "missing_endpoints",
    "nearest",
    "parse",
    "remote",
    "show",
    "wrong_aliases",
    "wrong_endpoint",
]
