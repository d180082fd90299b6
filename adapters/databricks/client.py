"""How an endpoint of a Databricks workspace is called. The base URL is the workspace's."""

from __future__ import annotations

from urllib.parse import quote

from adapters.base import Outbound, Reply
from adapters.databricks.dialects import Dialect
from adapters.openai.remote.decode_answer import StreamReader, read_answer
from adapters.openai.remote.embeddings import read_embeddings, write_embed
from adapters.openai.remote.encode_request import is_chat, write_body
from adapters.openai.remote.failures import remote_failure
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate


class DatabricksClient:
    """One dialect's client face."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Write a request. The path names the endpoint, the body does not."""
        raw = {} if is_chat(request) else {"use_raw_prompt": True}
        return Outbound(_path(request.model), write_body(self._dialect, request, raw))

    def decoder(self, request: Generate) -> StreamReader:
        """A reader for the streamed answer to `request`."""
        return StreamReader(self._dialect, request)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`."""
        return read_answer(self._dialect, request, reply)

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for vectors."""
        return Outbound(_path(request.model), write_embed(self._dialect, request, {}, instruction=True))

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The answer to a request for vectors."""
        return read_embeddings(self._dialect, request, reply)

    def returns_token_ids(self, request: Generate) -> bool:  # noqa: ARG002
        """The protocol has no token ids."""
        return False

    def error(self, reply: Reply) -> GatewayError:
        """What a reply with an error status means."""
        return remote_failure(reply)


def _path(endpoint: str) -> str:
    return f"/serving-endpoints/{quote(endpoint, safe='')}/invocations"
