"""A protocol that a server speaks: how it is called there, and what its error statuses mean."""

from __future__ import annotations

from typing import NamedTuple

from adapters.base import ClientCodec, Reply
from schemas.errors import BackendFailed, GatewayError


class Spoken(NamedTuple):
    """A protocol that a server speaks: its client codec, the path below the URL where it does, and the model's name
    in requests where none is configured (None: the endpoint's own).
    """

    codec: ClientCodec
    prefix: str = ""
    model: str | None = None


def error_of(codec: ClientCodec, reply: Reply) -> GatewayError:
    """The error of a reply with an error status.

    401 and 403 are about the gateway's key: the client can do nothing about them and must not take them for its own.
    """
    if reply.status in (401, 403):
        # No `fault`: not retried, since the same key would be refused again.
        return BackendFailed("The backend refused the gateway's key.", code="upstream_unauthorized")
    return codec.error(reply)
