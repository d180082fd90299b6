"""Errors of remotes. The remote's message is passed on only where the client can correct the request."""

from __future__ import annotations

from adapters.base import Reply
from adapters.remote_failures import REFUSED, failure_of, read_error, retry_after
from schemas.errors import GatewayError
from schemas.triton import RemoteResponse


def remote_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status."""
    return failure_of(reply.status, _message(reply.body), retry_after(reply.headers))


def _message(body: bytes) -> str:
    """The remote's message, from a JSON object or, as Triton writes the first error of a stream, an event."""
    error = read_error(body.strip().removeprefix(b"data:"), RemoteResponse).error
    return error if isinstance(error, str) and error else REFUSED
