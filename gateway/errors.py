"""Exceptions: which text a client may see."""

from __future__ import annotations

import traceback

import structlog

from schemas.errors import GatewayError, InternalError

log = structlog.get_logger()


def to_client_error(error: Exception, request_id: str) -> GatewayError:
    """The error itself if it is a `GatewayError`; else an `InternalError` with a fixed text, and a trace in the log."""
    if type(error) is not GatewayError and isinstance(error, GatewayError):
        return error
    # The trace as text: a renderer given the exception itself may print local variables, and so a prompt.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("request.broke", request_id=request_id, error=type(error).__name__, trace=trace)
    return InternalError()
