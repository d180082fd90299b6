"""Exceptions: which text a client may see, and after which of them another target is asked."""

from __future__ import annotations

import traceback

import structlog

from schemas.errors import (
    BackendError,
    BackendTimeout,
    GatewayError,
    InternalError,
    Overloaded,
    RateLimited,
)

log = structlog.get_logger()


def to_client_error(error: Exception, request_id: str) -> GatewayError:
    """The error itself if it is a `GatewayError`; else an `InternalError` with a fixed text, and a trace in the log."""
    if type(error) is not GatewayError and isinstance(error, GatewayError):
        return error
    # The trace as text: a renderer given the exception itself may print local variables, and so a prompt.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("request.broke", request_id=request_id, error=type(error).__name__, trace=trace)
    return InternalError()


def is_failover_eligible(error: Exception) -> bool:
    """Whether another served entity may be asked after this error, which came before any event.

    Yes if a backend failed, is overloaded, shuts down or limits its callers. No after a timeout: the client has waited
    long enough. No if the request itself is at fault, and no after a bug.
    """
    return isinstance(error, BackendError | Overloaded | RateLimited) and not isinstance(error, BackendTimeout)
