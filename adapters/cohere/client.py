"""Client codec: how Cohere's API is called. The base URL ends before the API's version."""

from __future__ import annotations

from adapters.base import Outbound, Reply
from adapters.cohere.dialects import Dialect
from adapters.cohere.outbound import EXACT_EFFORTS, INPUT_TYPE, write_embed, write_request
from adapters.cohere.remote import StreamReader, read_answer, read_embeddings, read_failure
from adapters.outbound import relayed_body
from adapters.written_client import WrittenClient
from schemas.ir import Embed, Embeddings, Generate
from schemas.left_out import BUDGET, DETAIL, STRICT, left_out
from schemas.origin import Relay

_SENT = ("thinking", BUDGET, STRICT, DETAIL)
"""The hints that the protocol has a form for."""
_RELAYED = frozenset(("openai", name) for name in ("rerank", "rerank_unversioned", "rerank_v2"))
"""Requests for ranks have one form everywhere: Cohere's."""


class CohereClient(WrittenClient[Dialect]):
    """Client codec of one dialect."""

    write_request = staticmethod(write_request)
    stream_reader = StreamReader
    read_answer = staticmethod(read_answer)
    read_failure = staticmethod(read_failure)

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for embeddings.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        return write_embed(request)

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The embeddings of an answer."""
        return read_embeddings(request, reply)

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """The dialects and operations of which the remote is sent the client's own body."""
        return _RELAYED

    def encode_relay(self, request: Relay) -> Outbound:
        """A request for ranks, as it came."""
        return Outbound("/v2/rerank", relayed_body(request.origin.body, {"model": request.model}))

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """What has no field of the protocol."""
        if isinstance(request, Embed):
            return tuple(name for name in request.unknown if name != INPUT_TYPE)
        is_exact = request.hints.get("reasoning_effort") in EXACT_EFFORTS
        return left_out(request, (*_SENT, "reasoning_effort") if is_exact else _SENT)
