"""Server codec: the routes of the Gemini API, and which function reads each body and writes each answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec

from adapters.base import Call, RawHeaders, Reply, Route
from adapters.gemini.answers import ArrayWriter, StreamWriter, encode_answer, encode_embeddings, error_reply
from adapters.gemini.decode import read_count, read_embed, read_generate
from adapters.gemini.describe import list_models, retrieve_model
from adapters.gemini.dialects import Dialect
from adapters.rate_limits import openai_limit_headers
from schemas import gemini as wire
from schemas.completion import Completion
from schemas.errors import GatewayError, Quota
from schemas.ir import Embed, Embeddings, Generate, Origin, Request, Tokenize, Tokens

_CHAT = {"contents": [{"role": "user", "parts": [{"text": "What is the capital of France?"}]}]}
_TEXT = {"content": {"parts": [{"text": "Hello!"}]}}
_TEXTS = {"requests": [_TEXT]}
_GENERATE = (wire.GenerateRequest, wire.GenerateAnswer, _CHAT)
"""The structs and the example of both routes that generate."""


def _routes(version: str) -> Iterator[Route]:
    """The routes of one version of the API."""
    listing, model = f"/{version}/models", f"/{version}/models/{{model:path}}"
    for verb, name, kind, summary, body, answer, example in (
        ("generateContent", "generate", "generate", "Answer a conversation", *_GENERATE),
        ("streamGenerateContent", "stream", "generate", "Answer as it is written (`alt=sse`: as events)", *_GENERATE),
        ("countTokens", "count_tokens", "tokenize", "Count the tokens", wire.CountRequest, wire.Count, _CHAT),
        ("embedContent", "embed", "embed", "Embed a text", wire.EmbedRequest, wire.EmbedAnswer, _TEXT),
        ("batchEmbedContents", "batch_embed", "embed", "Embed texts", wire.BatchRequest, wire.BatchAnswer, _TEXTS),
    ):
        yield Route(
            "POST",
            f"{model}:{verb}",
            name,
            kind,  # type: ignore[arg-type]
            summary,
            body=body,
            answer=answer,
            streams=name == "stream",
            example=example,
        )
    # In the version without "beta" these paths are OpenAI's, too: the header, which Google's SDKs send, decides.
    header = None if version.endswith("beta") else "x-goog-api-client"
    yield Route("GET", listing, "models", "describe", "List the models", answer=wire.ModelList, header=header)
    yield Route(
        "GET", f"{listing}/{{id:path}}", "model", "describe", "Describe a model", answer=wire.Model, header=header
    )


class GeminiServer:
    """Server codec of one dialect.

    Args:
        dialect: the dialect to speak.
    """

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = (*_routes("v1beta"), *_routes("v1"))

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def decode(self, route: Route, body: bytes, call: Call) -> Request:
        """Read a request.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
        """
        # The form of a stream is in the query.
        array = route.name == "stream" and call.query.get("alt") != "sse"
        origin = Origin("gemini", self._dialect.name, "stream_array" if array else route.name, body)
        if route.kind == "embed":
            return read_embed(self._dialect, body, origin, call)
        return (read_count if route.kind == "tokenize" else read_generate)(self._dialect, body, origin, call)

    def encoder(self, request: Generate) -> StreamWriter:
        """A writer for the streamed answer to `request`."""
        array = request.origin is not None and request.origin.operation == "stream_array"
        return (ArrayWriter if array else StreamWriter)(self._dialect, request)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`."""
        return encode_answer(self._dialect, request, answer)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings."""
        return encode_embeddings(request, answer)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """The number of tokens of a conversation."""
        return Reply(msgspec.json.encode(wire.Count(len(answer.spans))))

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The models, or one of them.

        Raises:
            schemas.errors.RequestError: there is no such model, or no such page.
        """
        return list_models(call) if route.name == "models" else retrieve_model(call)

    def limit_headers(self, quotas: Sequence[Quota]) -> RawHeaders:
        """OpenAI's headers: the protocol has none of its own."""
        return openai_limit_headers(quotas)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error)
