"""The client codec: requests to a remote TGI or MindIE, and its answers."""

from __future__ import annotations

from adapters.base import Outbound, Reply
from adapters.tgi.dialects import Dialect
from adapters.tgi.outbound import passes_on, write_request
from adapters.tgi.remote import StreamReader, read_answer
from adapters.tgi.remote_failures import remote_failure
from adapters.written_client import FoldingClient
from schemas.errors import GatewayError
from schemas.ir import Embed, Events, Generate
from schemas.left_out import left_out
from schemas.origin import Relay


class TgiClient(FoldingClient):
    """The client codec of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Encode a request."""
        return write_request(self._dialect, request)

    def decoder(self, request: Generate) -> StreamReader:
        """The decoder of the streamed answer to `request`."""
        return StreamReader(self._dialect, request)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The events of a non-streamed answer to `request`."""
        return read_answer(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """Always: in this protocol every token has an id."""
        return True

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """All but a TGI client's own top-level fields and parameters."""
        return tuple(name for name in left_out(request) if not passes_on(request, name))

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """The tokenization, by the remote's own tokenizer."""
        return frozenset({(self._dialect.name, "tokenize")})

    def encode_relay(self, request: Relay) -> Outbound:
        """A request to tokenize: the client's body, which names no model."""
        return Outbound("/tokenize", request.origin.body)

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return remote_failure(reply)
