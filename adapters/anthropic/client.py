"""Client codec: how a remote server of Anthropic's protocol is called."""

from __future__ import annotations

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.outbound import write_request
from adapters.anthropic.relay import relays, remote_headers
from adapters.anthropic.remote import StreamReader, read_answer, read_failure
from adapters.base import Outbound, Reply
from adapters.outbound import relayed_body
from schemas.errors import GatewayError
from schemas.ir import Embed, Events, Generate
from schemas.left_out import BUDGET, left_out
from schemas.origin import Relay

_SENT = ("thinking", BUDGET)
"""The hints that the protocol has a form for."""


class AnthropicClient:
    """Client codec of one dialect.

    Args:
        dialect: the dialect to speak.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        return write_request(self._dialect, request)

    def decoder(self, request: Generate) -> StreamReader:
        """A reader for the streamed answer to `request`."""
        return StreamReader(self._dialect, request)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`, as the complete stream of its events."""
        return read_answer(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """False: the protocol has no token ids."""
        return False

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """Conversations, and the counting of their tokens."""
        return frozenset({(self._dialect.name, "messages"), (self._dialect.name, "count_tokens")})

    def encode_relay(self, request: Relay) -> Outbound:
        """A request to count tokens: the client's body."""
        origin = request.origin
        body = relayed_body(origin.body, {"model": request.model})
        return Outbound("/v1/messages/count_tokens", body, headers=remote_headers(origin.headers))

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """None of a body that is relayed; else all, since the request is written anew."""
        relayed = isinstance(request, Generate) and relays(self._dialect, request)
        return () if relayed else left_out(request, _SENT)

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return read_failure(reply)
