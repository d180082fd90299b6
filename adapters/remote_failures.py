"""What the status of a remote's answer means, whatever its protocol.

The remote's own words are passed on only where the client can mend the request.
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
"""Where it does not say why."""


def malformed(why: str) -> BackendError:
    """The remote does not speak the protocol."""
    return BackendFailed(f"The backend's answer could not be read: {why}.", fault=Fault.MALFORMED)


def failed() -> BackendError:
    """The remote failed, and the client can do nothing about it."""
    return BackendFailed("The backend failed.", code="upstream_error")


def failure_of(status: int, words: str, retry_after: float | None) -> GatewayError:
    """What an error status means; `words` are the remote's, `retry_after` is in seconds."""
    if status in (400, 422):
        return InvalidRequest(words)
    if status == 404:
        return ModelNotFound(words)
    if status == 413:
        return BodyTooLarge(words)
    if status == 429:
        return Overloaded("The backend is overloaded.", retry_after=retry_after)
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
    """What an error says; nothing if it is not in the protocol's form. All fields of `type` have defaults."""
    try:
        return msgspec.json.decode(body, type=type)
    except UNREADABLE:
        return type()


def retry_after(headers: Headers) -> float | None:
    """In seconds. `retry-after-ms` is the finer one; a date is not read."""
    told = {name.lower(): value for name, value in headers}
    if (milliseconds := header_number(told.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    seconds = header_number(told.get("retry-after", ""))
    return None if seconds is None else float(seconds)


def header_number(value: str) -> int | None:
    """A header's number; None if it is not one, or absurdly large."""
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None
