"""The table of the protocol: what may be asked, what ends and errors are called."""

from __future__ import annotations

import msgspec

_INVALID = "invalid_request_error"
_API = "api_error"


class Failure(msgspec.Struct, frozen=True):
    """How an error kind is told."""

    status: int
    type: str


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way to speak the protocol.

    Attributes:
        stop_reasons: finish reason -> the protocol's word.
        reasons: the protocol's word -> finish reason, of remotes.
        failures: error kind -> how it is told.
        max_temperature: the range is [0, max_temperature].
        max_stops: stop sequences a request may have.
        max_tools: tools a request may have.
    """

    name: str
    stop_reasons: dict[str, str]
    reasons: dict[str, str]
    failures: dict[str, Failure]
    max_temperature: float = 1.0
    max_stops: int = 8192
    max_tools: int = 128


_ANTHROPIC = Dialect(
    name="anthropic",
    stop_reasons={
        "eos": "end_turn",
        "stop_string": "stop_sequence",
        "stop_token": "end_turn",
        "length": "max_tokens",
        "tool_call": "tool_use",
        "content_filter": "refusal",
    },
    reasons={
        "end_turn": "eos",
        "pause_turn": "eos",
        "stop_sequence": "stop_string",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_call",
        "refusal": "content_filter",
    },
    failures={
        "invalid_request": Failure(400, _INVALID),
        "malformed_body": Failure(400, _INVALID),
        "unsupported": Failure(400, _INVALID),
        "context_length": Failure(400, _INVALID),
        "unauthorized": Failure(401, "authentication_error"),
        "forbidden": Failure(403, "permission_error"),
        "model_not_found": Failure(404, "not_found_error"),
        "route_not_found": Failure(404, "not_found_error"),
        "method_not_allowed": Failure(405, _INVALID),
        "conflict": Failure(409, _INVALID),
        "body_too_large": Failure(413, "request_too_large"),
        "unsupported_media_type": Failure(415, _INVALID),
        "request_timeout": Failure(408, _INVALID),
        "rate_limited": Failure(429, "rate_limit_error"),
        "overloaded": Failure(529, "overloaded_error"),
        "shutting_down": Failure(529, "overloaded_error"),
        "backend_failed": Failure(502, _API),
        "backend_unavailable": Failure(503, _API),
        "timeout": Failure(504, "timeout_error"),
        "incomplete": Failure(502, _API),
        "internal": Failure(500, _API),
    },
)

DIALECTS = {"anthropic": _ANTHROPIC}
