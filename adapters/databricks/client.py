"""Client codec: how an endpoint of a Databricks workspace is called. The base URL is the workspace's."""

from __future__ import annotations

from urllib.parse import quote

from msgspec.structs import replace

from adapters.base import Outbound
from adapters.openai.client import OpenAIClient
from adapters.openai.remote.embeddings import write_embed
from adapters.openai.remote.encode_request import is_chat_call, write_body
from schemas.ir import Embed, Generate


class DatabricksClient(OpenAIClient):
    """Client codec of one dialect: OpenAI's, but the path names the endpoint and the body does not."""

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot express it.
        """
        # A prompt without `use_raw_prompt` would be put into the chat template by the remote.
        raw = {} if is_chat_call(request) else {"use_raw_prompt": True}
        # The platform refuses a function without a description, which most other protocols allow.
        tools = tuple(replace(tool, description=tool.description or tool.name) for tool in request.tools)
        return Outbound(_path(request.model), write_body(self._dialect, replace(request, tools=tools), raw))

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for embeddings."""
        return Outbound(_path(request.model), write_embed(self._dialect, request, {}, instruction=True))

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """None: a workspace's endpoints have the operations of the IR."""
        return frozenset()


def _path(endpoint: str) -> str:
    # `safe=''`: a "/" in a name must not start another path segment.
    return f"/serving-endpoints/{quote(endpoint, safe='')}/invocations"
