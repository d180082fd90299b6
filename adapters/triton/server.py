"""The server codec: Triton's routes, the decoding of their bodies and the encoding of their answers.

`generate` and `generate_stream` have the same body. Every route of a model also exists with a version in its path; its
name then ends in `_version`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec

from adapters.base import Call, Reply, Route
from adapters.body import SMALL
from adapters.rate_limits import openai_limit_headers
from adapters.triton import describe, failures, infer
from adapters.triton.dialects import Dialect
from adapters.triton.generate import body as generate_body
from adapters.triton.generate.encode import EVENT_STREAM, FrameEncoder, Values, Writer, frame, id_headers
from adapters.triton.generate.plain import read_plain
from adapters.triton.generate.request import outputs_of, to_generate
from schemas.completion import Completion
from schemas.errors import BackendError, GatewayError, InternalError, MalformedBody
from schemas.ir import Embed, Embeddings, Generate, Tokenize, Tokens
from schemas.triton import (
    GenerateRequest,
    GenerateResponse,
    IndexEntry,
    IndexRequest,
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelMetadata,
    ServerMetadata,
    Statistics,
)

_Kind = Literal["generate", "describe"]
_MODEL = "/v2/models/{model}"


def _both(
    method: Literal["GET", "POST"], path: str, name: str, kind: _Kind, summary: str, **described: Any
) -> Iterator[Route]:
    """A model's route, and the same route with a version."""
    yield Route(method, f"{_MODEL}{path}", name, kind, summary, **described)
    yield Route(method, f"{_MODEL}/versions/{{version}}{path}", f"{name}_version", kind, summary, **described)


_GENERATE = {
    "body": GenerateRequest,
    "answer": GenerateResponse,
    "example": {"text_input": "The capital of France is", "parameters": {"max_tokens": 20}},
}

ROUTES = (
    *_both("POST", "/generate", "generate", "generate", "Generate text, one response", **_GENERATE),
    *_both(
        "POST", "/generate_stream", "generate_stream", "generate", "Generate text as events", streams=True, **_GENERATE
    ),
    *_both("POST", "/infer", "infer", "generate", "Infer on tensors", body=InferRequest, answer=InferResponse),
    Route("GET", "/v2", "server", "describe", "Server metadata", answer=ServerMetadata),
    Route("GET", "/v2/health/live", "live", "describe", "Whether the server runs", open=True),
    Route("GET", "/v2/health/ready", "ready", "describe", "Whether every model can answer", open=True),
    Route("GET", "/v2/models/stats", "all_stats", "describe", "Statistics of all models", answer=Statistics),
    *_both("GET", "", "model", "describe", "Model metadata", answer=ModelMetadata),
    *_both("GET", "/ready", "model_ready", "describe", "Whether the model can answer"),
    *_both("GET", "/config", "config", "describe", "Model configuration", answer=ModelConfig),
    *_both("GET", "/stats", "stats", "describe", "Model statistics", answer=Statistics),
    Route(
        "POST",
        "/v2/repository/index",
        "index",
        "describe",
        "List the models",
        body=IndexRequest,
        answer=tuple[IndexEntry, ...],
    ),
    Route("POST", "/v2/repository/models/{model}/load", "load", "describe", "Load a model"),
    Route("POST", "/v2/repository/models/{model}/unload", "unload", "describe", "Unload a model"),
)


class TritonServer:
    """The server codec.

    Args:
        dialect: the protocol's variant.
    """

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = ROUTES

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def decode(self, route: Route, body: bytes, call: Call) -> Generate:
        """Decode a request. Its content type is ignored, as by Triton."""
        card = describe.model(call)
        try:
            if route.name.startswith("generate"):
                given = read_plain(body, card, self.dialect) or generate_body.read(body, card, self.dialect)
            else:
                given = infer.read(body, call.headers, card, self.dialect.limits.max_input_bytes)
        except MalformedBody as error:
            # The dialect's own sentence around the decoder's reason.
            raise MalformedBody(self.dialect.wording.malformed.format(reason=error.message)) from None
        return to_generate(given, route, call, card, self.dialect, body)

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """A plain request of the generate extension, as `decode` reads it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the protocol.
        """
        if not route.name.startswith("generate") or len(body) > SMALL:
            return None
        request = self.decode(route, body, call)
        return None if request.unknown else request

    def encoder(self, request: Generate) -> FrameEncoder:
        """The encoder of the streamed answer to `request`."""
        return FrameEncoder(request, self.dialect)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The complete answer to `request`. On `generate_stream` with `stream: false` it is one frame."""
        reply = self._whole(request, answer) if answer.relayed is None else Reply(answer.relayed)
        ids = id_headers(request, answer.token_ids)
        return msgspec.structs.replace(reply, headers=reply.headers + ids) if ids else reply

    def _whole(self, request: Generate, answer: Completion) -> Reply:
        values = Values(request, self.dialect).whole(answer)
        operation = request.origin.operation if request.origin else "generate"
        if operation.startswith("infer"):
            return infer.write(
                outputs_of(request),
                values,
                model=request.model,
                version=self.dialect.answers.model_version or describe.VERSION,
                id=request.client_request_id or "",
            )
        body = Writer(request, self.dialect).object(values)
        if operation.startswith("generate_stream"):
            return Reply(frame(body, self.dialect), media_type=EVENT_STREAM)
        return Reply(body)

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:  # noqa: ARG002
        """Never called: there is no route for embeddings."""
        raise InternalError

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """Never called: there is no route for tokens."""
        raise InternalError

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """Answer a route that runs no model."""
        return describe.describe(self.dialect, route, call, body)

    limit_headers = staticmethod(openai_limit_headers)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The error response while nothing of a stream is written.

        "If the request fails before inference begins, then a JSON error will be returned"; an error in place of the
        first response of a stream has the error's status and is a frame.
        """
        reply = failures.reply(error, self.dialect)
        # A refused request is answered as JSON even on `generate_stream`.
        if request is None or not request.stream or not isinstance(error, BackendError):
            return reply
        return Reply(frame(reply.body, self.dialect), reply.status, EVENT_STREAM, reply.headers)
