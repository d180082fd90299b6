"""Exceptions: which text a client may see."""

from __future__ import annotations

import errno
import sqlite3
import traceback

import structlog

from schemas.errors import BackendUnavailable, GatewayError, InternalError

log = structlog.get_logger()

_NOT_KEPT = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_NOT_KEPT_BY_SQLITE = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN")


def to_client_error(error: Exception, request_id: str) -> GatewayError:
    """The error itself if it is a `GatewayError`; that of a full disk; else an `InternalError` with a fixed text, and a
    trace in the log.

    It has the request's id.
    """
    failure: GatewayError
    if type(error) is not GatewayError and isinstance(error, GatewayError):
        failure = error
    elif _is_of_disk(error):
        log.error("storage.failed", request_id=request_id, error=str(error))
        failure = BackendUnavailable("The server cannot keep this now: its disk is full, or cannot be written to.")
    else:
        # The trace as text: a renderer given the exception itself may print local variables, and so a prompt.
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("request.broke", request_id=request_id, error=type(error).__name__, trace=trace)
        failure = InternalError()
    failure.request_id = request_id or None
    return failure


def _is_of_disk(error: Exception) -> bool:
    """Whether something could not be kept: the server is well, and an operator can help."""
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorname", "").startswith(_NOT_KEPT_BY_SQLITE)
    return isinstance(error, OSError) and error.errno in _NOT_KEPT
