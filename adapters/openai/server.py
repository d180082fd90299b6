"""Server codec: the routes of OpenAI's API, and which function reads each body and writes each answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

import msgspec

from adapters.base import Call, Reply, Route, StreamEncoder
from adapters.batches import BatchCodec, FileCodec
from adapters.body import parse
from adapters.objects import Follow, Steps
from adapters.openai.batches import OpenAIBatches, OpenAIFiles, batch_routes
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import encode_answer, encode_embeddings
from adapters.openai.inbound.chat_stream import ChatStreamWriter
from adapters.openai.inbound.completion_stream import CompletionStreamWriter
from adapters.openai.inbound.decode import read_chat, read_completion, read_fields
from adapters.openai.inbound.failures import error_body, error_reply
from adapters.openai.inbound.plain import PlainChats
from adapters.openai.inbound.tokens import encode_tokens, read_detokenize, read_tokenize
from adapters.openai.models import describe_tokenizer, describe_version, list_models, retrieve_model
from adapters.openai.pooling.embeddings import read_embed
from adapters.openai.pooling.scores import encode_scores, read_score
from adapters.openai.relay import RELAY_ROUTES, TOKENS, read_relay
from adapters.openai.responses import background
from adapters.openai.responses.answers import ResponseWriter, encode_response, encode_token_count
from adapters.openai.responses.compact import COMPACT, encode_compaction, read_compaction
from adapters.openai.responses.decode import COUNT, OPERATION, read_count, read_question, read_response
from adapters.openai.responses.stored import list_items
from adapters.openai.routes import (
    conversation_routes,
    generation_routes,
    model_routes,
    response_routes,
    stored_chat_routes,
)
from adapters.openai.stored import chats, conversations
from adapters.rate_limits import openai_limit_headers
from schemas.catalog import Change
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import ChatPrompt, Embed, Embeddings, Generate, Origin, Request, Tokenize, Tokens
from schemas.openai import answers, requests
from schemas.openai.tokens import (
    DetokenizedText,
    DetokenizeRequest,
    ServerVersion,
    TokenizerDescription,
    TokenizeRequest,
    TokenList,
)
from schemas.origin import Relay
from schemas.scores import Score, Scores

OBJECT_STEPS: dict[str, Callable[[Call], Steps[Reply | Follow]] | Callable[[Call], Steps[Reply]]] = {
    "response": background.retrieve,
    "forget": background.delete,
    "cancel": background.cancel,
    "conversation": conversations.retrieve,
    "delete_conversation": conversations.delete,
    "list_items": conversations.list_items,
    "item": conversations.retrieve_item,
    "delete_item": conversations.delete_item,
    "list_chats": chats.list_chats,
    "stored_chat": chats.retrieve,
    "delete_chat": chats.delete,
    "list_messages": chats.list_messages,
}
"""Name of a route of stored objects without a body -> the steps that answer it."""

INVOCATIONS = "invocations"
"""The route whose body decides whether it is a chat or a completion."""


class OpenAIServer:
    """Server codec of one dialect.

    Args:
        dialect: the dialect to speak.
        now: clock that gives Unix time in seconds.
    """

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = (
        *generation_routes("/v1"),
        *response_routes("/v1"),
        *conversation_routes("/v1"),
        *stored_chat_routes("/v1"),
        *model_routes("/v1"),
        *batch_routes("/v1"),
        *RELAY_ROUTES,
        Route(
            "POST",
            "/tokenize",
            "tokenize",
            "tokenize",
            "Tokenize a text or a conversation (vLLM)",
            body=TokenizeRequest,
            answer=TokenList,
            fields=frozenset({"prompt", "messages"}),
        ),
        Route(
            "POST",
            "/detokenize",
            "detokenize",
            "tokenize",
            "Turn tokens into text (vLLM)",
            body=DetokenizeRequest,
            answer=DetokenizedText,
        ),
        Route(
            "GET",
            "/tokenizer_info",
            "tokenizer_info",
            "describe",
            "Describe the tokenizer (vLLM)",
            answer=TokenizerDescription,
        ),
        Route("GET", "/version", "version", "describe", "Tell the gateway's version (vLLM)", answer=ServerVersion),
        # SageMaker's, which TGI and vLLM have; a body with `inputs` is TGI's.
        Route(
            "POST",
            "/invocations",
            INVOCATIONS,
            "generate",
            "Answer a conversation, or continue a `prompt` (SageMaker)",
            body=requests.ChatRequest,
            answer=answers.ChatCompletion,
            streams=True,
            fields=frozenset({"messages", "prompt"}),
        ),
        # Azure's: the newer API, and the older one, whose paths name the deployment.
        *generation_routes("/openai/v1"),
        *response_routes("/openai/v1"),
        *conversation_routes("/openai/v1"),
        *stored_chat_routes("/openai/v1"),
        *model_routes("/openai/v1"),
        *batch_routes("/openai/v1"),
        *generation_routes("/openai/deployments/{name}"),
        *response_routes("/openai"),
        *conversation_routes("/openai"),
        *model_routes("/openai"),
        *batch_routes("/openai"),
    )

    _chat_operations: ClassVar[tuple[str, ...]] = ("chat",)
    """The names of the routes that chats come to."""

    batches: BatchCodec = OpenAIBatches()
    files: FileCodec = OpenAIFiles()

    def __init__(self, dialect: Dialect, now: Callable[[], float] = time.time) -> None:
        self._dialect = dialect
        self._now = now
        self._plain_chats = PlainChats(dialect, self._chat_operations)

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Change:
        """Read a request.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the dialect.
        """
        dialect = self._dialect
        if route.kind == "relay":  # the body may be a form
            return read_relay(dialect, route.name, body, call)
        # Azure's paths name the deployment, whatever `model` the body has.
        if (plain := self._plain_chats.read(route.name, body, call, call.path.get("name"))) is not None:
            return plain
        fields, name = parse(body), route.name
        if name == INVOCATIONS and isinstance(fields, dict):
            fields.setdefault("model", "")  # SageMaker's containers have one model: the default endpoint's
            name = "chat" if "messages" in fields else "completions"
        origin = Origin(dialect.protocol, dialect.name, name, body)
        if isinstance(fields, dict) and "name" in call.path:
            fields["model"] = call.path["name"]
        if name in (OPERATION, COUNT):
            question, extra = read_question(dialect, fields)
            return (read_count if name == COUNT else read_response)(dialect, question, origin, call, extra)
        if name in TOKENS:
            return (read_tokenize if name == "tokenize" else read_detokenize)(dialect, fields, origin, call)
        # The body is converted to another struct for each route, so every branch has a variable of its own type.
        if name == "chat":
            asked, extra = read_fields(dialect, fields, requests.ChatRequest)
            return chats.checked(read_chat(dialect, asked, origin, call, extra), asked.metadata)
        if name in ("completions", INVOCATIONS):
            prompted, extra = read_fields(dialect, fields, requests.CompletionRequest)
            return read_completion(dialect, prompted, origin, call, extra)
        embedded, extra = read_fields(dialect, fields, requests.EmbeddingRequest)
        return read_embed(dialect, embedded, origin, call, extra)

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """A plain chat, as `decode` reads it."""
        return self._plain_chats.read(route.name, body, call, call.path.get("name"))

    def encoder(self, request: Generate) -> StreamEncoder:
        """A writer for the streamed answer to `request`: a chat, a completion or a response."""
        created = int(self._now())
        if _is_response(request):
            return ResponseWriter(request, self._now)
        # `stream_error` is a method: a subclass encodes errors in streams in its own form.
        writer: type[ChatStreamWriter | CompletionStreamWriter] = CompletionStreamWriter
        if isinstance(request.prompts[0], ChatPrompt):
            writer = ChatStreamWriter if request.stored_items is None else chats.StoredChatWriter
        return writer(self._dialect, request, created, self.stream_error)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`: a chat, a completion or a response."""
        if _is_response(request):
            return encode_response(request, answer, int(self._now()))
        # The fast path: chats and completions are relayed as they came.
        if answer.relayed is not None and request.stored_items is None:
            return Reply(answer.relayed)
        created = int(self._now())
        if request.origin is not None and request.origin.operation == COMPACT:
            return encode_compaction(request, answer, created)
        reply = encode_answer(self._dialect, request, answer, created)
        if request.stored_items is None:
            return reply
        return msgspec.structs.replace(reply, record=chats.record_of(request, reply.body))

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings."""
        return encode_embeddings(request, answer)

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:
        """The number of tokens of an input, or vLLM's answers."""
        if request.origin is not None and request.origin.operation in TOKENS:
            return encode_tokens(request, answer)
        return encode_token_count(answer)

    def read_score(self, request: Relay) -> Score:
        """The request for scores that a relayed body is, for a model here.

        Raises:
            schemas.errors.RequestError: a field is missing or wrong.
        """
        return read_score(self._dialect, request)

    def encode_scores(self, request: Score, answer: Scores) -> Reply:
        """The answer to a request for scores."""
        return encode_scores(request, answer, int(self._now()))

    def read_by_text(self, request: Relay) -> Generate:
        """The request for a summary of a conversation.

        Raises:
            schemas.errors.RequestError: the body is invalid.
        """
        return read_compaction(self._dialect, request)

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The model list, one model, a tokenizer, the version, or a stored response.

        Raises:
            schemas.errors.RequestError: there is no such model or stored response.
        """
        if route.name == "input_items":
            return list_items(call)
        if route.name == "tokenizer_info":
            return describe_tokenizer(call)
        if route.name == "version":
            return describe_version(call)
        return (list_models if route.name == "models" else retrieve_model)(self._dialect, call)

    def steps(self, route: Route, call: Call, body: bytes) -> Steps[Reply | Follow]:
        """The steps that answer a request for a conversation, a stored response or a stored chat.

        Raises:
            schemas.errors.RequestError: the request is wrong, or names an object that is not there.
        """
        fields = parse(body) if body else None
        match route.name:
            case "create_conversation":
                return (yield from conversations.create(self._dialect, call, fields, int(self._now())))
            case "update_conversation":
                return (yield from conversations.update(self._dialect, call, fields))
            case "update_chat":
                return (yield from chats.update(self._dialect, call, fields))
            case "create_items":
                return (yield from conversations.create_items(self._dialect, call, fields))
        return (yield from OBJECT_STEPS[route.name](call))

    end_lost = staticmethod(background.end_lost)

    def needed(self, route: Route, body: bytes) -> tuple[str, str] | None:
        """The conversation that a response continues."""
        return conversations.named(body) if route.name in (OPERATION, COUNT) else None

    limit_headers = staticmethod(openai_limit_headers)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error, request)

    def stream_error(self, error: GatewayError) -> bytes:
        """The data of the event that ends a stream with an error."""
        return error_body(self._dialect, error)


def _is_response(request: Generate) -> bool:
    # The prompt does not show it: a response and a chat have the same `ChatPrompt`.
    return request.origin is not None and request.origin.operation == OPERATION
