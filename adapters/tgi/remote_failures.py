"""What a remote's errors mean. Its own words are passed on only where the client can mend the request."""

from __future__ import annotations

import msgspec

from adapters.base import Headers, Reply
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    ContextLengthExceeded,
    GatewayError,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from schemas.tgi import RemoteAnswer

_VALIDATION_PREFIX = "Input validation error: "
_TOO_LONG = ("`inputs` tokens + `max_new_tokens` must be", "`inputs` must have less than", "Inputs token length")
_STATUS_OF_TYPE = {
    "validation": 422,
    "template_error": 422,
    "missing_template_variable": 422,
    "overloaded": 429,
    "Input Validation Error": 422,
    "NotFoundError": 404,
    "Bad Request": 400,
    "Service Unavailable": 503,
    "incomplete_generation": 500,
    "incomplete_generation_stream": 500,
    "Incomplete Generation": 500,
}
"""What an error in a stream would have had for a status: TGI answers even an invalid request with 200 and an event."""


def malformed(why: str) -> BackendError:
    """The remote does not speak the protocol."""
    return BackendFailed(f"The backend's answer could not be read: {why}.", code="upstream_malformed")


def event_failure(answer: RemoteAnswer) -> GatewayError:
    """What an error in a stream means, or in an answer of status 200."""
    return _failure(_STATUS_OF_TYPE.get(answer.error_type or "", 424), answer, None)


def remote_failure(reply: Reply) -> GatewayError:
    """What a reply with an error status means."""
    try:
        answer = msgspec.json.decode(reply.body, type=RemoteAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = RemoteAnswer()
    return _failure(reply.status, answer, _retry_after(reply.headers))


def _failure(status: int, answer: RemoteAnswer, retry_after: float | None) -> GatewayError:
    words = answer.error or "The backend refused the request."
    if status in (400, 422):
        words = words.removeprefix(_VALIDATION_PREFIX)
        return (ContextLengthExceeded if words.startswith(_TOO_LONG) else InvalidRequest)(words)
    if status == 404:
        return ModelNotFound(words)
    if status == 413:
        return BodyTooLarge(words)
    if status == 429:
        return Overloaded("The backend is overloaded.", retry_after=retry_after)
    if status == 503:
        return BackendUnavailable("The backend is unavailable.", retry_after=retry_after)
    if status in (408, 504):
        return BackendTimeout("The backend timed out.")
    if status == 500 and _STATUS_OF_TYPE.get(answer.error_type or "") == 500:
        return Incomplete("The backend's answer stopped before it was finished.")
    return BackendFailed("The backend failed.", retry_after=retry_after)


def _retry_after(headers: Headers) -> float | None:
    value = next((value for name, value in headers if name.lower() == "retry-after"), "")
    return float(value) if value.isdecimal() else None
