"""Server codec: the routes of Ollama's API, and which function reads each body and writes each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from adapters.base import Call, RawHeaders, Reply, Route
from adapters.ollama.answers import StreamWriter, encode_answer, encode_embeddings, error_reply
from adapters.ollama.decode import read_chat, read_embed, read_embeddings, read_generate
from adapters.ollama.describe import list_models, list_running, show_model, show_version
from adapters.ollama.dialects import Dialect
from adapters.rate_limits import openai_limit_headers
from schemas import ollama as wire
from schemas.completion import Completion
from schemas.errors import GatewayError, InternalError, Quota
from schemas.ir import Embed, Embeddings, Generate, Origin, Request, Tokenize, Tokens

_READERS = {"chat": read_chat, "generate": read_generate, "embed": read_embed, "embeddings": read_embeddings}
"""Name of a route -> the function that reads its body."""


class OllamaServer:
    """Server codec of one dialect.

    Args:
        dialect: the dialect to speak.
        now: clock that gives Unix time in seconds.
    """

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "/api/chat",
            "chat",
            "generate",
            "Answer a conversation",
            body=wire.ChatRequest,
            answer=wire.ChatAnswer,
            streams=True,
            example={"model": "{model}", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        ),
        Route(
            "POST",
            "/api/generate",
            "generate",
            "generate",
            "Answer a prompt",
            body=wire.GenerateRequest,
            answer=wire.GenerateAnswer,
            streams=True,
            example={"model": "{model}", "prompt": "What is the capital of France?"},
        ),
        Route(
            "POST",
            "/api/embed",
            "embed",
            "embed",
            "Embed texts",
            body=wire.EmbedRequest,
            answer=wire.EmbedAnswer,
            example={"model": "{model}", "input": "Hello!"},
        ),
        Route(
            "POST",
            "/api/embeddings",
            "embeddings",
            "embed",
            "Embed one text (superseded)",
            body=wire.EmbeddingsRequest,
            answer=wire.EmbeddingsAnswer,
        ),
        Route("GET", "/api/tags", "tags", "describe", "List the models", answer=wire.ModelList),
        Route("GET", "/api/ps", "ps", "describe", "List the loaded models", answer=wire.RunningList),
        Route(
            "POST",
            "/api/show",
            "show",
            "describe",
            "Describe a model",
            body=wire.ShowRequest,
            answer=wire.ModelDescription,
            example={"model": "{model}"},
        ),
        Route("GET", "/api/version", "version", "describe", "Tell the version", answer=wire.Version, open=True),
    )

    def __init__(self, dialect: Dialect, now: Callable[[], float] = time.time) -> None:
        self._dialect = dialect
        self._now = now

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Reply:
        """Read a request; one that asks for no text is answered at once.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
        """
        origin = Origin("ollama", self._dialect.name, route.name, body)
        return _READERS[route.name](self._dialect, body, origin, call)

    def encoder(self, request: Generate) -> StreamWriter:
        """A writer for the streamed answer to `request`."""
        return StreamWriter(self._dialect, request, self._now)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`."""
        return encode_answer(self._dialect, request, answer, self._now())

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings."""
        return encode_embeddings(request, answer)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """Never called: the protocol has no route for tokens."""
        raise InternalError

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """What is served.

        Raises:
            schemas.errors.RequestError: the model that is asked about does not exist.
        """
        if route.name == "show":
            return show_model(call, body)
        if route.name == "version":
            return show_version(self._dialect)
        return list_models(call) if route.name == "tags" else list_running(call)

    def limit_headers(self, quotas: Sequence[Quota]) -> RawHeaders:
        """OpenAI's headers: the protocol has none of its own."""
        return openai_limit_headers(quotas)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error)
