"""MindIE's errors, which are the same in its TGI and OpenAI protocols (its Triton protocol has its own)."""

from __future__ import annotations

from adapters.dialect import Failure

_INVALID = Failure(422, "Input Validation Error")
_NOT_FOUND = Failure(404, "NotFoundError")
_UNAVAILABLE = Failure(503, "Service Unavailable")
_INCOMPLETE = Failure(500, "Incomplete Generation")

FAILURES = {
    "invalid_request": _INVALID,
    "malformed_body": Failure(422, "Input Validation Error", text="Failed to parse request context to json. {message}"),
    "unsupported": _INVALID,
    "context_length": _INVALID,
    "unauthorized": Failure(401, "Unauthorized"),
    "forbidden": Failure(403, "Forbidden"),
    "model_not_found": _NOT_FOUND,
    "route_not_found": _NOT_FOUND,
    "method_not_allowed": Failure(405, "Method Not Allowed"),
    "conflict": Failure(409, "Input Validation Error"),
    "body_too_large": Failure(413, "Input Validation Error"),
    "unsupported_media_type": Failure(415, "Input Validation Error"),
    "request_timeout": Failure(408, "Request Timeout"),
    "rate_limited": Failure(429, "Too Many Requests"),
    "overloaded": _UNAVAILABLE,
    "shutting_down": _UNAVAILABLE,
    # 424 Failed Dependency (RFC 4918 section 11.4) is TGI's status for a failed generation, which MindIE has, too.
    "backend_failed": Failure(424, "Generation Error"),
    "backend_unavailable": _UNAVAILABLE,
    "timeout": Failure(500, "Incomplete Generation", text="Engine callback timeout."),
    "incomplete": _INCOMPLETE,
    "internal": _INCOMPLETE,
}
"""By `GatewayError.kind`."""
