"""Server codec: the routes of Anthropic's Messages API, and which function reads each body and writes each answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar

import msgspec

from adapters.anthropic.answers import StreamWriter, encode_answer, error_reply
from adapters.anthropic.batches import BATCH_ROUTES, AnthropicBatches
from adapters.anthropic.decode import read_count, read_messages
from adapters.anthropic.describe import list_models, retrieve_model
from adapters.anthropic.dialects import Dialect
from adapters.anthropic.plain import read_plain_messages
from adapters.anthropic.relay import relayed_headers
from adapters.base import Call, RawHeaders, Reply, Route
from adapters.batches import BatchCodec
from schemas import anthropic as wire
from schemas.completion import Completion
from schemas.errors import GatewayError, InternalError, Quota
from schemas.ir import Embed, Embeddings, Generate, Origin, Request, Tokenize, Tokens

_VERSION = "anthropic-version"


class AnthropicServer:
    """Server codec of one dialect.

    Args:
        dialect: the dialect to speak.
    """

    id_header: ClassVar[str] = "request-id"
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "/v1/messages",
            "messages",
            "generate",
            "Answer a conversation",
            body=wire.MessagesRequest,
            answer=wire.Answer,
            streams=True,
            example={
                "model": "{model}",
                "max_tokens": 64,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
            },
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            "count_tokens",
            "tokenize",
            "Count the tokens of a conversation",
            body=wire.CountRequest,
            answer=wire.Count,
            example={"model": "{model}", "messages": [{"role": "user", "content": "Hello!"}]},
        ),
        *BATCH_ROUTES,
        # The paths are OpenAI's, too: the header, which every client of this protocol sends, decides.
        Route("GET", "/v1/models", "models", "describe", "List the models", answer=wire.ModelList, header=_VERSION),
        Route(
            "GET", "/v1/models/{id:path}", "model", "describe", "Describe a model", answer=wire.Model, header=_VERSION
        ),
    )

    batches: BatchCodec = AnthropicBatches()

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def decode(self, route: Route, body: bytes, call: Call) -> Request:
        """Read a request.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
        """
        origin = self._origin(route, body, call)
        if route.name == "count_tokens":
            return read_count(self._dialect, body, origin, call)
        plain = read_plain_messages(self._dialect, body, origin, call)
        return plain or read_messages(self._dialect, body, origin, call)

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """A plain conversation, as `decode` reads it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the protocol.
        """
        return read_plain_messages(self._dialect, body, self._origin(route, body, call), call)

    def _origin(self, route: Route, body: bytes, call: Call) -> Origin:
        return Origin("anthropic", self._dialect.name, route.name, body, relayed_headers(call.headers))

    def encoder(self, request: Generate) -> StreamWriter:
        """A writer for the streamed answer to `request`."""
        return StreamWriter(self._dialect, request)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`."""
        return encode_answer(self._dialect, request, answer)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:  # noqa: ARG002
        """Never called: the protocol has no embeddings."""
        raise InternalError

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """The number of tokens of a conversation."""
        return Reply(msgspec.json.encode(wire.Count(len(answer.spans))))

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        """The model list, or one model.

        Raises:
            schemas.errors.RequestError: there is no such model, or no such page.
        """
        return list_models(call) if route.name == "models" else retrieve_model(call)

    def limit_headers(self, quotas: Sequence[Quota]) -> RawHeaders:
        """`anthropic-ratelimit-requests-limit`, `-remaining` and `-reset`, and the same for tokens."""
        now, headers = int(time.time()), RawHeaders()
        for quota in quotas:
            limit, reset = _limit_and_reset(quota.kind, quota.limit, now + quota.reset)
            remaining = f"anthropic-ratelimit-{quota.kind}-remaining".encode()
            headers += (limit, (remaining, b"%d" % quota.remaining), reset)
        return headers

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002
        """The answer to an error before anything of a stream was written."""
        return error_reply(self._dialect, error)


@lru_cache
def _limit_and_reset(kind: str, limit: int, until: int) -> RawHeaders:
    """The headers that all answers of a second have in common; `until` is a Unix time."""
    # In the form of RFC 3339.
    reset = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    values = (("limit", str(limit)), ("reset", reset))
    return [(f"anthropic-ratelimit-{kind}-{what}".encode(), value.encode()) for what, value in values]
