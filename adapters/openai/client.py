"""Client codec: how a remote server of OpenAI's protocol is called. Its base URL ends in `/v1`."""

from __future__ import annotations

from collections.abc import Collection

from adapters.base import Outbound, Reply, StreamDecoder
from adapters.openai.dialects import Dialect
from adapters.openai.relay import relayed_operations, write_relay
from adapters.openai.remote.decode_answer import StreamReader, read_answer
from adapters.openai.remote.embeddings import read_embeddings, write_embed
from adapters.openai.remote.encode_request import is_chat_call, same_dialect, write_body
from adapters.openai.remote.failures import remote_failure
from adapters.openai.remote.plain_answer import read_plain_answer
from adapters.outbound import asks_for_one_text
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate
from schemas.left_out import PLACES, left_out
from schemas.origin import Relay


class OpenAIClient:
    """Client codec of one dialect.

    Args:
        dialect: the dialect to speak.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot express it.
        """
        path = "/chat/completions" if is_chat_call(request) else "/completions"
        return Outbound(path, write_body(self._dialect, request, {"model": request.model}))

    def decoder(self, request: Generate) -> StreamDecoder:
        """A reader for the streamed answer to `request`."""
        return StreamReader(self._dialect, request)

    # Subclassed by `DatabricksClient`, which changes the paths alone: bodies, answers and errors are the same.
    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`, as the complete stream of its events."""
        return read_answer(self._dialect, request, reply)

    answers_plainly = staticmethod(asks_for_one_text)

    def read_plain(self, request: Generate, body: bytes) -> Completion | None:
        """A plain answer; None of any other."""
        return read_plain_answer(self._dialect, request, body)

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for embeddings."""
        return Outbound("/embeddings", write_embed(self._dialect, request, {"model": request.model}))

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The answer to a request for embeddings."""
        return read_embeddings(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """False: the protocol has no token ids."""
        return False

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """None if the client's own body is sent."""
        if same_dialect(self._dialect, request):
            return ()
        return unsent(request, (*self._dialect.remote.remote_fields, *PLACES))

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """The operations that a remote may have beside those of the IR."""
        return relayed_operations(self._dialect)

    def encode_relay(self, request: Relay) -> Outbound:
        """A request that is relayed as it came."""
        return write_relay(request)

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return remote_failure(reply)


def unsent(request: Generate | Embed, sent: Collection[str]) -> tuple[str, ...]:
    """What of a request that is written anew does not reach the server, which is `sent` these fields and places."""
    places = left_out(request, sent)
    if isinstance(request, Embed) or not request.unread:
        return places
    # A word that is not known here, in a field that is sent: the server knows it, or refuses it.
    words = {part.param for part in request.unread if part.feature in sent and part.feature in request.hints}
    return tuple(place for place in places if place not in words)
