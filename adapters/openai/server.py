"""Server codec: the routes of OpenAI's API, and which function reads each body and writes each answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from adapters.base import Call, Reply, Route, StreamEncoder
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import encode_answer, encode_embeddings
from adapters.openai.inbound.chat_stream import ChatStreamWriter
from adapters.openai.inbound.completion_stream import CompletionStreamWriter
from adapters.openai.inbound.decode import read, read_chat, read_completion
from adapters.openai.inbound.describe import list_models, retrieve_model
from adapters.openai.inbound.embeddings import read_embed
from adapters.openai.inbound.failures import error_body, error_reply
from adapters.openai.responses.answers import ResponseWriter, encode_response, encode_token_count
from adapters.openai.responses.decode import COUNT, OPERATION, read_count, read_response
from adapters.openai.responses.stored import cancel, delete, list_items, retrieve
from schemas.catalog import Change
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import ChatPrompt, Embed, Embeddings, Generate, Origin, Request, Tokenize, Tokens
from schemas.openai import answers, requests
from schemas.responses import Deleted, InputTokens, ItemList, Response, ResponseRequest

STORED_RESPONSES = {"response": retrieve, "forget": delete, "cancel": cancel, "input_items": list_items}
"""Name of a route of stored responses -> the function that answers it."""


def response_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of the Responses API under the path `prefix`."""
    path = f"{prefix}/responses"
    return (
        Route(
            "POST",
            path,
            OPERATION,
            "generate",
            "Answer in typed items",
            body=ResponseRequest,
            answer=Response,
            streams=True,
            stores=True,
            example={"model": "{model}", "input": "What is the capital of France?"},
        ),
        Route(
            "POST",
            f"{path}/input_tokens",
            COUNT,
            "tokenize",
            "Count the tokens of an input",
            body=ResponseRequest,
            answer=InputTokens,
            stores=True,
            example={"model": "{model}", "input": "What is the capital of France?"},
        ),
        Route(
            "POST",
            f"{path}/{{id}}/cancel",
            "cancel",
            "describe",
            "Cancel a background response (there are none)",
            stores=True,
        ),
        Route(
            "GET", f"{path}/{{id}}", "response", "describe", "Retrieve a stored response", answer=Response, stores=True
        ),
        Route(
            "DELETE", f"{path}/{{id}}", "forget", "describe", "Delete a stored response", answer=Deleted, stores=True
        ),
        Route(
            "GET",
            f"{path}/{{id}}/input_items",
            "input_items",
            "describe",
            "List the input items of a stored response",
            answer=ItemList,
            stores=True,
        ),
    )


class OpenAIServer:
    """Server codec of one dialect.

    Args:
        dialect: the dialect to speak.
        now: clock that gives Unix time in seconds.
    """

    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "/v1/chat/completions",
            "chat",
            "generate",
            "Answer a conversation",
            body=requests.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
            example={"model": "{model}", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        ),
        Route(
            "POST",
            "/v1/completions",
            "completions",
            "generate",
            "Continue a prompt",
            body=requests.CompletionRequest,
            answer=answers.Completion,
            streams=True,
            example={"model": "{model}", "prompt": "One, two, three,", "max_tokens": 12},
        ),
        *response_routes("/v1"),
        Route(
            "POST",
            "/v1/embeddings",
            "embeddings",
            "embed",
            "Turn texts into vectors",
            body=requests.EmbeddingRequest,
            answer=answers.EmbeddingList,
            example={"model": "{model}", "input": "One, two, three."},
        ),
        Route("GET", "/v1/models", "models", "describe", "List the models", answer=answers.ModelList),
        Route("GET", "/v1/models/{id:path}", "model", "describe", "Describe a model", answer=answers.Model),
    )

    def __init__(self, dialect: Dialect, now: Callable[[], float] = time.time) -> None:
        self._dialect = dialect
        self._now = now

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Change:
        """Read a request.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the dialect.
        """
        dialect = self._dialect
        origin = Origin(dialect.protocol, dialect.name, route.name, body)
        if route.name in (OPERATION, COUNT):
            question, extra = read(dialect, body, ResponseRequest)
            return (read_count if route.name == COUNT else read_response)(dialect, question, origin, call, extra)
        # The body is converted to another struct for each route, so every branch has a variable of its own type.
        if route.name == "chat":
            asked, extra = read(dialect, body, requests.ChatRequest)
            return read_chat(dialect, asked, origin, call, extra)
        if route.name == "completions":
            prompted, extra = read(dialect, body, requests.CompletionRequest)
            return read_completion(dialect, prompted, origin, call, extra)
        embedded, extra = read(dialect, body, requests.EmbeddingRequest)
        return read_embed(dialect, embedded, origin, call, extra)

    def encoder(self, request: Generate) -> StreamEncoder:
        """A writer for the streamed answer to `request`: a chat, a completion or a response."""
        created = int(self._now())
        if _is_response(request):
            return ResponseWriter(request, self._now)
        # `stream_error` is a method: a subclass encodes errors in streams in its own form.
        writer = ChatStreamWriter if isinstance(request.prompts[0], ChatPrompt) else CompletionStreamWriter
        return writer(self._dialect, request, created, self.stream_error)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`: a chat, a completion or a response."""
        created = int(self._now())
        if _is_response(request):
            return encode_response(request, answer, created)
        return encode_answer(self._dialect, request, answer, created)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings."""
        return encode_embeddings(request, answer)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """The number of tokens of an input."""
        return encode_token_count(answer)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The model list, one model, or a stored response.

        Raises:
            schemas.errors.RequestError: there is no such model or stored response.
        """
        if route.name in STORED_RESPONSES:
            return STORED_RESPONSES[route.name](call)
        return (list_models if route.name == "models" else retrieve_model)(self._dialect, call)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error, request)

    def stream_error(self, error: GatewayError) -> bytes:
        """The data of the event that ends a stream with an error."""
        return error_body(self._dialect, error)


def _is_response(request: Generate) -> bool:
    # The prompt does not show it: a response and a chat have the same `ChatPrompt`.
    return request.origin is not None and request.origin.operation == OPERATION
