"""A protocol that a server speaks: how it is called there, how a request waits, and what its error statuses mean."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from adapters.base import ClientCodec, Outbound, Reply
from schemas.errors import BackendFailed, GatewayError
from schemas.ir import Embed, Generate
from schemas.origin import Relay

_BYTES_PER_TOKEN = 4
_MOST_PROMPT_TOKENS = 8192
"""Longer bodies are mostly images, whose bytes are no text."""
_USUAL_ANSWER = 256
"""Tokens of an answer without `max_tokens`."""


class Spoken(NamedTuple):
    """A protocol that a server speaks: its client codec, the path below the URL where it does, and the model's name
    in requests where none is configured (None: the endpoint's own).
    """

    codec: ClientCodec
    prefix: str = ""
    model: str | None = None


def addressed(outbound: Outbound, request: Generate | Embed | Relay, prefix: str = "") -> Outbound:
    """The request with its path below the URL, and with what its place in the line depends on."""
    tokens = min(len(outbound.body) // _BYTES_PER_TOKEN + 1, _MOST_PROMPT_TOKENS)
    if isinstance(request, Generate):
        choices = len(request.prompts) * (request.best_of or request.n)
        tokens += choices * (request.stopping.max_new_tokens or _USUAL_ANSWER)
    return msgspec.structs.replace(outbound, path=prefix + outbound.path, flow=request.flow, tokens=tokens)


def error_of(codec: ClientCodec, reply: Reply) -> GatewayError:
    """The error of a reply with an error status.

    401 and 403 are about the gateway's key: the client can do nothing about them and must not take them for its own.
    """
    if reply.status in (401, 403):
        # No `fault`: not retried, since the same key would be refused again.
        return BackendFailed("The backend refused the gateway's key.", code="upstream_unauthorized")
    return codec.error(reply)
