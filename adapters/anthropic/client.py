"""Client codec: how a remote server of Anthropic's protocol is called."""

from __future__ import annotations

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.outbound import write_request
from adapters.anthropic.relay import relays, remote_headers
from adapters.anthropic.remote import StreamReader, read_answer, read_failure
from adapters.base import Outbound
from adapters.outbound import relayed_body
from adapters.written_client import WrittenClient
from schemas.ir import Embed, Generate
from schemas.left_out import BUDGET, left_out
from schemas.origin import Relay

_SENT = ("thinking", BUDGET)
"""The hints that the protocol has a form for."""


class AnthropicClient(WrittenClient[Dialect]):
    """Client codec of one dialect."""

    write_request = staticmethod(write_request)
    stream_reader = StreamReader
    read_answer = staticmethod(read_answer)
    read_failure = staticmethod(read_failure)

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
