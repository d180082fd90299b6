"""MindIE's errors, which are the same on all its URLs but Triton's. A table; the dialects make rows of it."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """How a kind of error is said. `text` may hold the error's own `{message}`."""

    status: int
    type: str
    text: str = "{message}"


_INVALID = Told(422, "Input Validation Error")
_NOT_FOUND = Told(404, "NotFoundError")
_UNAVAILABLE = Told(503, "Service Unavailable")
_INCOMPLETE = Told(500, "Incomplete Generation")

FAILURES = {
    "invalid_request": _INVALID,
    "malformed_body": Told(422, "Input Validation Error", "Failed to parse request context to json. {message}"),
    "unsupported": _INVALID,
    "context_length": _INVALID,
    "unauthorized": Told(401, "Unauthorized"),
    "forbidden": Told(403, "Forbidden"),
    "model_not_found": _NOT_FOUND,
    "route_not_found": _NOT_FOUND,
    "method_not_allowed": Told(405, "Method Not Allowed"),
    "conflict": Told(409, "Input Validation Error"),
    "body_too_large": Told(413, "Input Validation Error"),
    "unsupported_media_type": Told(415, "Input Validation Error"),
    "request_timeout": Told(408, "Request Timeout"),
    "rate_limited": Told(429, "Too Many Requests"),
    "overloaded": _UNAVAILABLE,
    "shutting_down": _UNAVAILABLE,
    "backend_failed": Told(424, "Generation Error"),
    "backend_unavailable": _UNAVAILABLE,
    "timeout": Told(500, "Incomplete Generation", "Engine callback timeout."),
    "incomplete": _INCOMPLETE,
    "internal": _INCOMPLETE,
}
"""By `GatewayError.kind`."""
