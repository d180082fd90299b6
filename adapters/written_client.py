"""What client codecs share: the reading of plain answers, and all of those that are made of a protocol's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from adapters.base import ClientCodec, Outbound, Reply, StreamDecoder
from adapters.fold import fold
from adapters.outbound import asks_for_one_text
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate

DialectT = TypeVar("DialectT")


class FoldingClient:
    """The part of a client codec that reads plain answers (`adapters.optional.PlainClient`) as it reads all answers."""

    answers_plainly = staticmethod(asks_for_one_text)

    def read_plain(self: ClientCodec, request: Generate, body: bytes) -> Completion | None:
        """An answer of one choice; None of any other."""
        try:
            answer = fold(self.decode(request, Reply(body)))
        except GatewayError:
            return None
        return answer if len(answer.choices) == 1 else None


class WrittenClient(FoldingClient, Generic[DialectT]):
    """Client codec of one dialect. A protocol's own names its functions, and says what it ignores.

    Args:
        dialect: the dialect to speak.

    Attributes:
        write_request: writes a request in a dialect.
        stream_reader: makes the reader of a streamed answer.
        read_answer: the events of a whole answer.
        read_failure: the error that a reply with an error status stands for.
    """

    write_request: Callable[[DialectT, Generate], Outbound]
    stream_reader: Callable[[DialectT, Generate], StreamDecoder]
    read_answer: Callable[[DialectT, Generate, Reply], Events]
    read_failure: Callable[[Reply], GatewayError]

    def __init__(self, dialect: DialectT) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        return self.write_request(self._dialect, request)

    def decoder(self, request: Generate) -> StreamDecoder:
        """A reader for the streamed answer to `request`."""
        return self.stream_reader(self._dialect, request)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`, as the complete stream of its events."""
        return self.read_answer(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """False: the IR's ids are those of a tokenizer that is known."""
        return False

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return self.read_failure(reply)


class EmbeddingClient(WrittenClient[DialectT]):
    """The same of a protocol that has embeddings.

    Attributes:
        write_embed: writes a request for embeddings in a dialect.
        read_embeddings: the embeddings of an answer.
    """

    write_embed: Callable[[DialectT, Embed], Outbound]
    read_embeddings: Callable[[DialectT, Embed, Reply], Embeddings]

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for embeddings.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        return self.write_embed(self._dialect, request)

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The embeddings of an answer."""
        return self.read_embeddings(self._dialect, request, reply)
