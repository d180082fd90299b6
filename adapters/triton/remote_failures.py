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
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from schemas.triton import RemoteResponse


def malformed(why: str) -> BackendError:
    """The remote does not speak the protocol."""
    return BackendFailed(f"The backend's answer could not be read: {why}.", code="upstream_malformed")


def failed() -> BackendError:
    """The remote said that it failed, in an answer of status 200."""
    return BackendFailed("The backend failed.", code="upstream_error")


def remote_failure(reply: Reply) -> GatewayError:
    """What a reply with an error status means."""
    status, retry_after = reply.status, _retry_after(reply.headers)
    if status in (400, 422):
        return InvalidRequest(_words(reply.body))
    if status == 404:
        return ModelNotFound(_words(reply.body))
    if status == 413:
        return BodyTooLarge(_words(reply.body))
    if status == 429:
        return Overloaded("The backend is overloaded.", retry_after=retry_after)
    if status in (502, 503):
        return BackendUnavailable("The backend is unavailable.", retry_after=retry_after)
    if status in (408, 504):
        return BackendTimeout("The backend timed out.")
    return BackendFailed("The backend failed.", code="upstream_error")


def _words(body: bytes) -> str:
    """The remote's own sentence, be it a JSON object or (as Triton writes the first error of a stream) an event."""
    try:
        error = msgspec.json.decode(body.strip().removeprefix(b"data:"), type=RemoteResponse).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = None
    return error if isinstance(error, str) and error else "The backend refused the request."


def _retry_after(headers: Headers) -> float | None:
    value = next((value for name, value in headers if name.lower() == "retry-after"), "")
    return float(value) if value.isdecimal() else None
