"""How an endpoint of a Databricks workspace is called. The base URL is the workspace's."""

from __future__ import annotations

from urllib.parse import quote

from adapters.base import Outbound, Reply
from adapters.databricks.dialects import Dialect
from adapters.openai.outbound import is_chat, write_body
from adapters.openai.remote import StreamReader, read_answer
from adapters.openai.remote_failures import remote_failure
from schemas.errors import GatewayError
from schemas.ir import Events, Generate


class DatabricksClient:
    """One dialect's client face."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def encode(self, request: Generate) -> Outbound:
        """Write a request. The path names the endpoint, the body does not."""
        raw = {} if is_chat(request) else {"use_raw_prompt": True}
        path = f"/serving-endpoints/{quote(request.model, safe='')}/invocations"
        return Outbound(path, write_body(self._dialect, request, raw))

    def decoder(self, request: Generate) -> StreamReader:
        """A reader for the streamed answer to `request`."""
        return StreamReader(self._dialect, request)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`."""
        return read_answer(self._dialect, request, reply)

    def error(self, reply: Reply) -> GatewayError:
        """What a reply with an error status means."""
        return remote_failure(reply)
