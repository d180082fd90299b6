"""Whatever was raised, as an error that a client may see."""

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
    """The error itself if it was meant for clients; else a fixed sentence, and the truth in the log."""
    if type(error) is not GatewayError and isinstance(error, GatewayError):
        return error
    # The trace as text: a renderer given the exception itself may print local variables, and so a prompt.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("request.broke", request_id=request_id, error=type(error).__name__, trace=trace)
    return InternalError()


def is_failover_eligible(error: Exception) -> bool:
    """Whether another served entity may be asked after this error, which came before any event.

    Yes if a backend failed, is full or limits its callers; no after a timeout, which has used up the client's patience,
    and never if the request itself is at fault.
    """
    return isinstance(error, BackendError | Overloaded | RateLimited) and not isinstance(error, BackendTimeout)
