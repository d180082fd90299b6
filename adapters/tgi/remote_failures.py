"""Errors of remotes. The remote's message is passed on only where the client can correct the request."""

from __future__ import annotations

from adapters.base import Reply
from adapters.remote_failures import REFUSED, failure_of, read_error, retry_after
from schemas.errors import ContextLengthExceeded, GatewayError, Incomplete, InvalidRequest
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
"""Error type -> HTTP status, for errors in streams: TGI answers even an invalid request with 200 and an event."""


def event_failure(answer: RemoteAnswer) -> GatewayError:
    """The error of a frame, or of a response with status 200."""
    # 424 is TGI's status for a failed generation.
    return _failure(_STATUS_OF_TYPE.get(answer.error_type or "", 424), answer, None)


def remote_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status."""
    return _failure(reply.status, read_error(reply.body, RemoteAnswer), retry_after(reply.headers))


def _failure(status: int, answer: RemoteAnswer, retry_after: float | None) -> GatewayError:
    message = answer.error or REFUSED
    if status in (400, 422):
        message = message.removeprefix(_VALIDATION_PREFIX)
        # No code distinguishes the two: the router's sentences do.
        return (ContextLengthExceeded if message.startswith(_TOO_LONG) else InvalidRequest)(message)
    # The remote's own word for an answer that broke off; any other 500 is a failure of the remote.
    if status == 500 and _STATUS_OF_TYPE.get(answer.error_type or "") == 500:
        return Incomplete("The backend's answer stopped before it was finished.")
    return failure_of(status, message, retry_after)
