"""Exceptions: which text a client may see, and after which of them another target is asked."""

from __future__ import annotations

import traceback

import structlog

from schemas.errors import (
    BackendError,
    BackendTimeout,
    GatewayError,
    InternalError,
    ModelNotFound,
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
    """Whether another served entity may be asked after this error of one, which came before any event.

    Yes if a backend failed, is overloaded, shuts down, limits its callers or lacks the served entity's model: the
    endpoint was found, so that is not the client's mistake. No after a timeout: the client has waited long enough. No
    if the request itself is at fault, and no after a bug.
    """
    eligible = BackendError | Overloaded | RateLimited | ModelNotFound
    return isinstance(error, eligible) and not isinstance(error, BackendTimeout)
