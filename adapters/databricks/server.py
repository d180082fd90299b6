"""What Databricks' clients see: its routes and errors, over OpenAI's bodies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from adapters.base import Call, Reply, Route
from adapters.databricks.decode import read_request
from adapters.databricks.describe import get_endpoint, host_metadata, list_endpoints, tell_changed
from adapters.databricks.dialects import Dialect
from adapters.databricks.failures import failure_event, failure_reply
from adapters.databricks.manage import read_change
from adapters.openai.inbound.answers import encode_vectors
from adapters.openai.inbound.stream import StreamWriter
from adapters.openai.responses.answers import ResponseWriter, counted
from adapters.openai.server import STORED, response_routes, stream_writer, whole_answer
from schemas import databricks as wire
from schemas.catalog import Change
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Generate, Tokenize, Tokens
from schemas.openai import answers


class DatabricksServer:
    """One dialect's server face.

    Args:
        dialect: the row of the table to speak.
        now: Unix time in seconds.
    """

    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "/serving-endpoints/{name}/invocations",
            "invocations",
            "generate",
            "Query an endpoint: a chat, a completion or embeddings",
            body=wire.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
            example={"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64},
        ),
        Route(
            "POST",
            "/serving-endpoints/{name}/served-models/{served}/invocations",
            "served_invocations",
            "generate",
            "Query one served entity of an endpoint",
            body=wire.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
        ),
        Route(
            "POST",
            "/serving-endpoints/chat/completions",
            "chat",
            "generate",
            "Answer a conversation",
            body=wire.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
        ),
        Route(
            "POST",
            "/serving-endpoints/completions",
            "completions",
            "generate",
            "Continue a prompt",
            body=wire.CompletionRequest,
            answer=answers.Completion,
            streams=True,
        ),
        Route(
            "POST",
            "/serving-endpoints/embeddings",
            "embeddings",
            "embed",
            "Turn texts into vectors",
            body=wire.EmbeddingRequest,
            answer=answers.EmbeddingList,
        ),
        *response_routes("/serving-endpoints"),
        Route(
            "POST",
            "/ai-gateway/mlflow/v1/chat/completions",
            "gateway_chat",
            "generate",
            "Answer a conversation, where newer clients ask",
            body=wire.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
        ),
        Route(
            "POST",
            "/ai-gateway/mlflow/v1/embeddings",
            "gateway_embeddings",
            "embed",
            "Turn texts into vectors, where newer clients ask",
            body=wire.EmbeddingRequest,
            answer=answers.EmbeddingList,
        ),
        Route(
            "GET", "/api/2.0/serving-endpoints", "endpoints", "describe", "List the endpoints", answer=wire.EndpointList
        ),
        Route(
            "GET",
            "/api/2.0/serving-endpoints/{name}",
            "endpoint",
            "describe",
            "Describe an endpoint",
            answer=wire.ServingEndpoint,
        ),
        Route(
            "POST",
            "/api/2.0/serving-endpoints",
            "create",
            "manage",
            "Create an endpoint",
            body=wire.CreateRequest,
            answer=wire.ServingEndpoint,
        ),
        Route(
            "PUT",
            "/api/2.0/serving-endpoints/{name}/config",
            "update",
            "manage",
            "Change what an endpoint serves, or how much of its traffic each served entity gets",
            body=wire.ConfigRequest,
            answer=wire.ServingEndpoint,
        ),
        Route("DELETE", "/api/2.0/serving-endpoints/{name}", "delete", "manage", "Delete an endpoint"),
        Route(
            "GET",
            "/.well-known/databricks-config",
            "host",
            "describe",
            "What kind of host this is",
            answer=wire.HostMetadata,
        ),
    )

    def __init__(self, dialect: Dialect, now: Callable[[], float] = time.time) -> None:
        self._dialect = dialect
        self._now = now

    def decode(self, route: Route, body: bytes, call: Call) -> Generate | Embed | Tokenize | Change:
        """Read a request."""
        if route.kind == "manage":
            return read_change(route, body, call)
        return read_request(self._dialect, route, body, call)

    def encoder(self, request: Generate) -> StreamWriter | ResponseWriter:
        """A writer for the streamed answer to `request`."""
        return stream_writer(self._dialect, request, int(self._now()), self._failure)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`."""
        return whole_answer(self._dialect, request, answer, int(self._now()))

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for vectors."""
        return encode_vectors(request, answer, request.id)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """How many there are."""
        return counted(answer)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """The endpoints, one of them, what a change made of it, a stored response, or the host."""
        if route.kind == "manage":
            return tell_changed(read_change(route, body, call), call)
        if route.name == "host":
            return host_metadata()
        if route.name in STORED:
            return STORED[route.name](call)
        return list_endpoints(call) if route.name == "endpoints" else get_endpoint(call)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002
        """The answer when nothing of a stream was written yet."""
        return failure_reply(self._dialect, error)

    def _failure(self, error: GatewayError) -> bytes:
        return failure_event(self._dialect, error)
