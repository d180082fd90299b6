"""Errors as gRPC's clients see them: a status of the call, or `error_message` in a stream of responses."""

from __future__ import annotations

from adapters.base import Headers, Reply
from adapters.dialect import row_for
from adapters.formats.length_prefixed import frame
from adapters.triton import failures
from adapters.triton.dialects import Dialect
from adapters.triton.grpc.messages import MEDIA_TYPE, MESSAGES, parse
from schemas.errors import GatewayError, MalformedBody

OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED = 0, 3, 4, 5, 7
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 8, 9, 12, 13, 14, 16

STATUSES = {
    "invalid_request": INVALID_ARGUMENT,
    "malformed_body": INVALID_ARGUMENT,
    "unsupported": UNIMPLEMENTED,
    "context_length": INVALID_ARGUMENT,
    "unauthorized": UNAUTHENTICATED,
    "forbidden": PERMISSION_DENIED,
    "model_not_found": NOT_FOUND,
    "route_not_found": UNIMPLEMENTED,
    "method_not_allowed": UNIMPLEMENTED,
    "conflict": FAILED_PRECONDITION,
    "body_too_large": RESOURCE_EXHAUSTED,
    "unsupported_media_type": INVALID_ARGUMENT,
    "request_timeout": DEADLINE_EXCEEDED,
    "rate_limited": RESOURCE_EXHAUSTED,
    "overloaded": UNAVAILABLE,
    "shutting_down": UNAVAILABLE,
    "backend_failed": INTERNAL,
    "backend_unavailable": UNAVAILABLE,
    "timeout": DEADLINE_EXCEEDED,
    "incomplete": INTERNAL,
    "internal": INTERNAL,
}
"""Our kind of error -> gRPC's status code (grpc/grpc:doc/statuscodes.md)."""


def reply(error: GatewayError, dialect: Dialect) -> Reply:
    """The error as a status of the call. The HTTP status is that of the error over HTTP, for the log."""
    over_http = failures.reply(error, dialect)
    headers = refusal(row_for(STATUSES, error), failures.message(error))
    return Reply(b"", over_http.status, MEDIA_TYPE, headers + over_http.headers)


def refusal(code: int, message: str) -> Headers:
    """The headers that give a call its status."""
    return ("grpc-status", str(code)), ("grpc-message", message)


def stream_error(message: str, id: str) -> bytes:
    """The framed response that tells of an error in a stream, and of which request."""
    response = MESSAGES["ModelStreamInferResponse"](error_message=message)
    response.infer_response.id = id
    return frame(response.SerializeToString())


def id_of(body: bytes) -> str:
    """The id of a request; empty for bytes that are no request."""
    try:
        return str(parse("ModelInferRequest", body).id)
    except MalformedBody:
        return ""
