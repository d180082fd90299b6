"""What OpenAI's clients see: the routes, tied to how their bodies are read and their answers written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from adapters.base import Call, Reply, Route
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import encode_answer, encode_vectors, is_chat
from adapters.openai.inbound.chat_stream import ChatStreamWriter
from adapters.openai.inbound.completion_stream import CompletionStreamWriter
from adapters.openai.inbound.decode import chat, completion, read
from adapters.openai.inbound.describe import list_models, retrieve_model
from adapters.openai.inbound.embeddings import embedding
from adapters.openai.inbound.failures import failure_body, failure_reply
from adapters.openai.inbound.stream import Frame, StreamWriter
from adapters.openai.responses.answers import ResponseWriter, counted, whole
from adapters.openai.responses.decode import COUNT, OPERATION, count, response
from adapters.openai.responses.stored import cancel, delete, list_items, retrieve
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Generate, Origin, Tokenize, Tokens
from schemas.openai import answers, requests
from schemas.responses import Deleted, InputTokens, ItemList, Response, ResponseRequest


def stream_writer(dialect: Dialect, request: Generate, created: int, failure: Frame) -> StreamWriter | ResponseWriter:
    """A writer for the streamed answer to `request`, be it a chat, a completion or a response."""
    if _is_response(request):
        return ResponseWriter(request, created)
    return (ChatStreamWriter if is_chat(request) else CompletionStreamWriter)(dialect, request, created, failure)


def whole_answer(dialect: Dialect, request: Generate, answer: Completion, created: int) -> Reply:
    """The whole answer to `request`, be it a chat, a completion or a response."""
    if _is_response(request):
        return whole(request, answer, created)
    return encode_answer(dialect, request, answer, created)


def _is_response(request: Generate) -> bool:
    return request.origin is not None and request.origin.operation == OPERATION


STORED = {"response": retrieve, "forget": delete, "cancel": cancel, "input_items": list_items}
"""What answers the routes of stored responses."""


def response_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of the Responses API below a path."""
    path = f"{prefix}/responses"
    return (
        Route(
            "POST",
            path,
            OPERATION,
            "generate",
            "Answer, in typed items",
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
            "Count a question's tokens",
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
            "Cancel a response in the background: none is",
            stores=True,
        ),
        Route(
            "GET",
            f"{path}/{{id}}",
            "response",
            "describe",
            "Tell a stored response again",
            answer=Response,
            stores=True,
        ),
        Route(
            "DELETE", f"{path}/{{id}}", "forget", "describe", "Delete a stored response", answer=Deleted, stores=True
        ),
        Route(
            "GET",
            f"{path}/{{id}}/input_items",
            "input_items",
            "describe",
            "List what a stored response answers",
            answer=ItemList,
            stores=True,
        ),
    )


class OpenAIServer:
    """One dialect's server face.

    Args:
        dialect: the row of the table to speak.
        now: Unix time in seconds.
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

    def decode(self, route: Route, body: bytes, call: Call) -> Generate | Embed | Tokenize:
        """Read a request."""
        dialect = self._dialect
        origin = Origin(dialect.protocol, dialect.name, route.name, body)
        if route.name in (OPERATION, COUNT):
            question, extra = read(dialect, body, ResponseRequest)
            return (count if route.name == COUNT else response)(dialect, question, origin, call, extra)
        if route.name == "chat":
            asked, extra = read(dialect, body, requests.ChatRequest)
            return chat(dialect, asked, origin, call, extra)
        if route.name == "completions":
            prompted, extra = read(dialect, body, requests.CompletionRequest)
            return completion(dialect, prompted, origin, call, extra)
        embedded, extra = read(dialect, body, requests.EmbeddingRequest)
        return embedding(embedded, origin, call, extra)

    def encoder(self, request: Generate) -> StreamWriter | ResponseWriter:
        """A writer for the streamed answer to `request`."""
        return stream_writer(self._dialect, request, int(self._now()), self._failure)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`."""
        return whole_answer(self._dialect, request, answer, int(self._now()))

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for vectors."""
        return encode_vectors(request, answer)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """How many there are."""
        return counted(answer)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The model list, one of it, or a stored response."""
        if route.name in STORED:
            return STORED[route.name](call)
        return (list_models if route.name == "models" else retrieve_model)(self._dialect, call)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The answer when nothing of a stream was written yet."""
        return failure_reply(self._dialect, error, request)

    def _failure(self, error: GatewayError) -> bytes:
        return failure_body(self._dialect, error)
