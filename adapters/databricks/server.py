"""Server codec: Databricks' routes, request rules and errors over OpenAI's bodies and answers."""

from __future__ import annotations

from typing import ClassVar

from adapters.base import Call, Reply, Route
from adapters.databricks.decode import CHATS, checked, endpoint, read_request
from adapters.databricks.describe import describe_change, get_endpoint, host_metadata, list_endpoints
from adapters.databricks.dialects import Dialect
from adapters.databricks.failures import error_event, error_reply
from adapters.databricks.manage import read_change
from adapters.openai.inbound.answers import encode_embeddings
from adapters.openai.responses.stored import list_items
from adapters.openai.routes import response_routes
from adapters.openai.server import OpenAIServer
from schemas import databricks as wire
from schemas.catalog import Change
from schemas.errors import GatewayError, InvalidRequest
from schemas.ir import Embed, Embeddings, Generate, Request
from schemas.openai import answers

_CHAT = {"model": "{model}", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


class DatabricksServer(OpenAIServer):
    """Server codec of one dialect: OpenAI's, with other routes, request rules and errors."""

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
            example=_CHAT,
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
            example={"model": "{model}", "prompt": "One, two, three,", "max_tokens": 12},
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
            "Answer a conversation (the path of newer clients)",
            body=wire.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
            example=_CHAT,
        ),
        Route(
            "POST",
            "/ai-gateway/mlflow/v1/embeddings",
            "gateway_embeddings",
            "embed",
            "Turn texts into vectors (the path of newer clients)",
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
            "Change the served entities of an endpoint, or their shares of its traffic",
            body=wire.ConfigRequest,
            answer=wire.ServingEndpoint,
        ),
        Route(
            "PUT",
            "/api/2.0/serving-endpoints/{name}/ai-gateway",
            "ai_gateway",
            "manage",
            "Configure usage tracking, fallback and rate limits of an endpoint",
            body=wire.AiGatewayRequest,
            answer=wire.AiGateway,
        ),
        Route(
            "PUT",
            "/api/2.0/serving-endpoints/{name}/rate-limits",
            "rate_limits",
            "manage",
            "Set an endpoint's rate limits",
            body=wire.AiGatewayRequest,
            answer=wire.AiGateway,
        ),
        Route("DELETE", "/api/2.0/serving-endpoints/{name}", "delete", "manage", "Delete an endpoint"),
        Route(
            "GET",
            "/.well-known/databricks-config",
            "host",
            "describe",
            "Describe the host",
            answer=wire.HostMetadata,
        ),
    )

    # Narrows the attribute of the base class: `read_request` needs the fields that this dialect adds.
    _dialect: Dialect
    _chat_operations = CHATS

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Change:
        """Read a request, or a change of an endpoint.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the dialect.
        """
        if route.kind == "manage":
            change = read_change(route, body, call)
            if change.unknown and self._dialect.requests.strict:
                name = min(change.unknown)
                raise InvalidRequest(self._dialect.wording.unknown_field.format(name=name), param=name)
            return change
        return self.read_plain(route, body, call) or read_request(self._dialect, route, body, call)

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """A plain chat, as `decode` reads it.

        Raises:
            schemas.errors.InvalidRequest: it breaks a rule that Databricks adds.
        """
        plain = self._plain_chats.read(route.name, body, call, endpoint(call))
        return None if plain is None else checked(self._dialect, plain, call)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings, which has an id here."""
        return encode_embeddings(request, answer, request.id)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """The endpoints, one endpoint, a changed endpoint, a stored response, or the host.

        Raises:
            schemas.errors.RequestError: there is no such endpoint or stored response.
        """
        if route.kind == "manage":
            # Called after the change was made, with the new catalog. The body is read again, because a codec keeps no
            # state.
            return describe_change(read_change(route, body, call), call)
        if route.name == "host":
            return host_metadata()
        if route.name == "input_items":
            return list_items(call)
        return list_endpoints(call) if route.name == "endpoints" else get_endpoint(call)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error)

    def stream_error(self, error: GatewayError) -> bytes:
        """The data of the event that ends a stream with an error."""
        return error_event(self._dialect, error)
