"""Client codec: how Cohere's API is called. The base URL ends before the API's version."""

from __future__ import annotations

from adapters.base import Outbound, Reply
from adapters.cohere.dialects import Dialect
from adapters.cohere.outbound import EXACT_EFFORTS, INPUT_TYPE, write_embed, write_request
from adapters.cohere.remote import StreamReader, read_answer, read_embeddings, read_failure
from adapters.outbound import relayed_body
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate
from schemas.left_out import BUDGET, DETAIL, STRICT, left_out
from schemas.origin import Relay

_SENT = ("thinking", BUDGET, STRICT, DETAIL)
"""The hints that the protocol has a form for."""
_RELAYED = frozenset(("openai", name) for name in ("rerank", "rerank_unversioned", "rerank_v2"))
"""Requests for ranks have one form everywhere: Cohere's."""


class CohereClient:
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

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """False: the ids that it has belong to pieces of text, not to tokens."""
        return False

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """What has no field of the protocol."""
        if isinstance(request, Embed):
            return tuple(name for name in request.unknown if name != INPUT_TYPE)
        is_exact = request.hints.get("reasoning_effort") in EXACT_EFFORTS
        return left_out(request, (*_SENT, "reasoning_effort") if is_exact else _SENT)

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return read_failure(reply)
