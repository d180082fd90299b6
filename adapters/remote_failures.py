"""Errors of remote servers: HTTP statuses and headers to `schemas.errors`, for all protocols.

The remote's own message is passed on only where the client can correct the request.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from adapters.base import Headers
from adapters.body import UNREADABLE
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    Fault,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)

T = TypeVar("T")

REFUSED = "The backend refused the request."
"""The message for a refusal without one."""


def malformed(why: str) -> BackendError:
    """The error for an answer that violates the protocol."""
    return BackendFailed(f"The backend's answer could not be read: {why}.", fault=Fault.MALFORMED)


def failed() -> BackendError:
    """The error for a failure of the remote that the client cannot correct."""
    return BackendFailed("The backend failed.", code="upstream_error")


def failure_of(status: int, message: str, retry_after: float | None) -> GatewayError:
    """The error for an HTTP status. `message` is the remote's, `retry_after` is in seconds."""
    # A 401 or 403 is not here: the remote refuses the gateway's own key, which the client cannot correct. Both end in
    # `failed()`.
    if status in (400, 422):
        return InvalidRequest(message)
    if status == 404:
        # Without a message it is rather the path that is not there: a wrong base URL, or another protocol's server.
        return ModelNotFound("The backend has no such model, or no such path." if message == REFUSED else message)
    if status == 413:
        return BodyTooLarge(message)
    if status == 429:
        return Overloaded("The backend is overloaded.", retry_after=retry_after)
    # 529 is Anthropic's "overloaded_error"; 502 is a proxy in front of a server that is down.
    if status in (502, 503, 529):
        return BackendUnavailable("The backend is unavailable.", retry_after=retry_after)
    if status in (408, 504):
        return BackendTimeout("The backend timed out.")
    return failed()


def read_json(body: bytes, type: type[T]) -> T:
    """Decode what a remote sent.

    Raises:
        schemas.errors.BackendFailed: it is not JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(body, type=type)
    except UNREADABLE:
        raise malformed("not the protocol's JSON") from None


def read_error(body: bytes, type: type[T]) -> T:
    """Decode an error body; an empty `type`, whose fields all have defaults, if it is not in the protocol's form."""
    try:
        return msgspec.json.decode(body, type=type)
    except UNREADABLE:
        # Proxies and load balancers answer errors with HTML or with nothing; the status still says what happened.
        return type()


def retry_after(headers: Headers) -> float | None:
    """Seconds to wait before a retry, from `retry-after-ms` or else `retry-after`; a date there counts as absent."""
    # Field names are case-insensitive (RFC 9110 section 5.1).
    values = {name.lower(): value for name, value in headers}
    # `retry-after-ms` is OpenAI's extension; it is more exact than the seconds of RFC 9110 section 10.2.3.
    if (milliseconds := header_number(values.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    seconds = header_number(values.get("retry-after", ""))
    return None if seconds is None else float(seconds)


def header_number(value: str) -> int | None:
    """A header's value as a number; None if it is not a natural number of at most nine digits."""
    # Not `str.isdigit`, which accepts other scripts; nine digits bound the int and cover 31 years of seconds.
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None
