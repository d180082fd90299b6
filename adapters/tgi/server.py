"""The server codec: TGI's routes, the decoding of their bodies and the encoding of their answers.

`GET /`, `/health`, `/ping` and `/metrics` belong to the gateway.
"""

from __future__ import annotations

from typing import ClassVar

from adapters.base import Call, Reply, Route
from adapters.rate_limits import openai_limit_headers
from adapters.tgi.chats import read_chat_tokenize, read_vertex
from adapters.tgi.decode import PlainRequests, read_generate, read_tokenize
from adapters.tgi.describe import info
from adapters.tgi.dialects import Dialect
from adapters.tgi.encode import encode_answer, encode_tokens
from adapters.tgi.failures import failure_reply
from adapters.tgi.stream import StreamWriter
from schemas import tgi as wire
from schemas.completion import Completion
from schemas.errors import GatewayError, RequestError
from schemas.ir import Embed, Embeddings, Generate, Tokenize, Tokens
from schemas.openai.requests import ChatRequest

_WHOLE = wire.GenerateResponse


class TgiServer:
    """The server codec of one dialect."""

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "/",
            "compat",
            "generate",
            "Generate tokens, or a stream of them if `stream` is true",
            body=wire.CompatGenerateRequest,
            answer=list[_WHOLE],
            streams=True,
        ),
        Route(
            "POST",
            "/invocations",
            "compat",
            "generate",
            "Generate tokens, as SageMaker asks for them",
            body=wire.CompatGenerateRequest,
            answer=list[_WHOLE],
            streams=True,
        ),
        Route(
            "POST",
            "/generate",
            "generate",
            "generate",
            "Generate tokens",
            body=wire.GenerateRequest,
            answer=_WHOLE,
            example={"inputs": "The capital of France is", "parameters": {"max_new_tokens": 20}},
        ),
        Route(
            "POST",
            "/generate_stream",
            "generate_stream",
            "generate",
            "Generate a stream of tokens as server-sent events",
            body=wire.GenerateRequest,
            answer=wire.StreamResponse,
            streams=True,
        ),
        Route(
            "POST",
            "/tokenize",
            "tokenize",
            "tokenize",
            "Tokenize inputs",
            body=wire.GenerateRequest,
            answer=list[wire.SimpleToken],
        ),
        Route(
            "POST",
            "/chat_tokenize",
            "chat_tokenize",
            "tokenize",
            "Render a conversation's template, and tokenize it",
            body=ChatRequest,
            answer=wire.ChatTokens,
        ),
        Route(
            "POST",
            "/vertex",
            "vertex",
            "generate",
            "Generate a text for each instance, as Vertex AI asks for them",
            body=wire.VertexRequest,
            answer=wire.VertexResponse,
        ),
        Route("GET", "/info", "info", "describe", "Served model info", answer=wire.Info),
    )

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._plain = PlainRequests(dialect)

    def decode(self, route: Route, body: bytes, call: Call) -> Generate | Tokenize:
        """Decode a request."""
        if route.kind == "tokenize":
            read = read_chat_tokenize if route.name == "chat_tokenize" else read_tokenize
            return read(self._dialect, body, call)
        if route.name == "vertex":
            return read_vertex(self._dialect, body, call)
        return self._plain.read(route.name, body, call) or read_generate(self._dialect, route.name, body, call)

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """A plain request, as `decode` reads it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the dialect.
        """
        return self._plain.read(route.name, body, call)

    def encoder(self, request: Generate) -> StreamWriter:
        """The encoder of the streamed answer to `request`."""
        return StreamWriter(self._dialect, request)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The complete answer to `request`."""
        return encode_answer(self._dialect, request, answer)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:  # noqa: ARG002
        """Never called: TGI has no route for embeddings."""
        raise AssertionError("TGI has no embeddings")

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:
        """The answer of `/tokenize` or `/chat_tokenize`."""
        return encode_tokens(request, answer)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The answer of `/info`."""
        return Reply(info(self._dialect, call))

    limit_headers = staticmethod(openai_limit_headers)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The error response while nothing of a stream is written."""
        # A request that could not be decoded left its wish for a stream in the error.
        streamed = request.stream if request is not None else isinstance(error, RequestError) and error.streamed
        return failure_reply(self._dialect, error, streamed=streamed)
