"""Exceptions: which text a client may see."""

from __future__ import annotations

import traceback

import structlog

from schemas.errors import GatewayError, InternalError

log = structlog.get_logger()


def to_client_error(error: Exception, request_id: str) -> GatewayError:
    """The error itself if it is a `GatewayError`; else an `InternalError` with a fixed text, and a trace in the log.

    It has the request's id.
    """
    if type(error) is not GatewayError and isinstance(error, GatewayError):
        error.request_id = request_id or None
        return error
    # The trace as text: a renderer given the exception itself may print local variables, and so a prompt.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("request.broke", request_id=request_id, error=type(error).__name__, trace=trace)
    failure = InternalError()
    failure.request_id = request_id or None
    return failure
