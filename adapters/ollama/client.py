"""Client codec: how a remote server of Ollama's protocol is called."""

from __future__ import annotations

from adapters.base import Outbound, Reply
from adapters.ollama.dialects import Dialect
from adapters.ollama.outbound import relays, write_embed, write_request
from adapters.ollama.remote import StreamReader, read_answer, read_embeddings, read_failure
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate
from schemas.left_out import left_out

_SENT = ("reasoning_effort", "thinking")
"""The hints that the protocol has a form for."""


class OllamaClient:
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
        return write_embed(self._dialect, request)

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The embeddings of an answer."""
        return read_embeddings(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """False: the protocol has no token ids."""
        return False

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """None of a body that is relayed; else all, since the request is written anew."""
        return () if relays(self._dialect, request) else left_out(request, _SENT)

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return read_failure(reply)
