"""The server codec: the methods of `GRPCInferenceService`, the decoding of their requests and the encoding of answers.

The bodies of requests are bare messages, those of answers are framed (`messages.py`).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import msgspec
from google.protobuf import json_format

from adapters.base import Call, Reply, Route
from adapters.formats.length_prefixed import frame
from adapters.rate_limits import openai_limit_headers
from adapters.triton import describe
from adapters.triton.dialects import Dialect
from adapters.triton.generate.encode import Values, id_headers
from adapters.triton.generate.request import to_generate
from adapters.triton.grpc import failures, read
from adapters.triton.grpc.messages import MEDIA_TYPE, MESSAGES, SERVICE, parse
from adapters.triton.grpc.write import MessageEncoder, ResponseWriter
from schemas.catalog import ModelCard
from schemas.completion import Completion
from schemas.errors import GatewayError, InternalError, InvalidRequest, ModelNotFound
from schemas.ir import Embed, Embeddings, Generate, Tokenize, Tokens


def _method(name: str, kind: Literal["generate", "describe"], summary: str, **described: Any) -> Route:
    return Route("POST", f"/{SERVICE}/{name}", described.pop("operation", name), kind, summary, **described)


ROUTES = (
    _method("ModelInfer", "generate", "Infer on tensors, one response", operation="infer"),
    _method("ModelStreamInfer", "generate", "Infer on tensors, as a stream", operation="infer_stream", streams=True),
    _method("ServerLive", "describe", "Whether the server runs", open=True),
    _method("ServerReady", "describe", "Whether every model can answer", open=True),
    _method("ModelReady", "describe", "Whether the model can answer"),
    _method("ServerMetadata", "describe", "Server metadata"),
    _method("ModelMetadata", "describe", "Model metadata"),
    _method("ModelConfig", "describe", "Model configuration"),
    _method("ModelStatistics", "describe", "Statistics of a model, or of all"),
    _method("RepositoryIndex", "describe", "List the models"),
    _method("RepositoryModelLoad", "describe", "Load a model"),
    _method("RepositoryModelUnload", "describe", "Unload a model"),
)


class TritonRpc:
    """The server codec.

    Args:
        dialect: the protocol's variant.
    """

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = ROUTES

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def decode(self, route: Route, body: bytes, call: Call) -> Generate:
        """Decode a request for an inference."""
        message = read.read(body)
        card = _model(call, message.model_name, message.model_version)
        given = read.to_given(message, body, card, self._dialect.limits.max_input_bytes)
        return to_generate(given, route, call, card, self._dialect, body)

    def encoder(self, request: Generate) -> MessageEncoder:
        """The encoder of the streamed answer to `request`."""
        return MessageEncoder(request, self._dialect)

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The complete answer to `request`. In a stream it is one response."""
        values, writer = Values(request, self._dialect).whole(answer), ResponseWriter(request, self._dialect)
        streams = request.origin is not None and request.origin.operation == "infer_stream"
        body = writer.part(values, is_last=True) if streams else frame(writer.whole(values))
        return Reply(body, media_type=MEDIA_TYPE, headers=id_headers(request, answer.token_ids))

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:  # noqa: ARG002
        """Never called: there is no method for embeddings."""
        raise InternalError

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:  # noqa: ARG002
        """Never called: there is no method for tokens."""
        raise InternalError

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """Answer a method that runs no model."""
        request = parse(f"{route.name}Request", body)
        if route.name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            # The configuration determines the models. Like Triton, without a look at the model's name.
            headers = failures.refusal(failures.UNAVAILABLE, describe.NO_MODEL_CONTROL)
            return Reply(b"", 503, MEDIA_TYPE, headers)
        response = MESSAGES[f"{route.name}Response"]()
        # The structs of the HTTP protocol have the names of protobuf's fields. Fields that describe no text model are
        # not in the messages.
        json_format.ParseDict(_described(route.name, call, request), response, ignore_unknown_fields=True)
        return Reply(frame(response.SerializeToString()), media_type=MEDIA_TYPE)

    limit_headers = staticmethod(openai_limit_headers)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:  # noqa: ARG002 - the same for all
        """The status of a call that has no answer."""
        return failures.reply(error, self._dialect)

    def stream_error(self, message: str, body: bytes) -> bytes:
        """The framed message that tells of an error in a stream, which goes on.

        Args:
            message: what is wrong.
            body: the request that has no answer.
        """
        return failures.stream_error(message, failures.id_of(body))


def _described(method: str, call: Call, request: Any) -> Any:
    """The fields of an answer that describes what is served."""
    catalog = call.catalog
    match method:
        case "ServerLive":
            return {"live": True}
        case "ServerReady":
            return {"ready": catalog.ready}
        case "ModelReady":
            return {"ready": _is_ready(call, request)}
        case "ServerMetadata":
            return msgspec.to_builtins(describe.server(catalog))
        case "RepositoryIndex":
            return {"models": msgspec.to_builtins(describe.index(catalog, only_ready=request.ready))}
        # Without a name those of all models.
        case "ModelStatistics" if not request.name:
            return msgspec.to_builtins(describe.statistics(catalog.cards.values()))
    card = _model(call, request.name, request.version)
    match method:
        case "ModelStatistics":
            return msgspec.to_builtins(describe.statistics([card]))
        case "ModelMetadata":
            return msgspec.to_builtins(describe.metadata(card))
    return {"config": msgspec.to_builtins(describe.config(card))}


def _is_ready(call: Call, request: Any) -> bool:
    """Whether a model is ready; one that does not exist is not."""
    try:
        return _model(call, request.name, request.version).ready
    except ModelNotFound:
        return False


def _model(call: Call, name: str, version: str) -> ModelCard:
    """The endpoint that a request names.

    Raises:
        schemas.errors.InvalidRequest: the version is not a number.
        schemas.errors.ModelNotFound: the model or version does not exist.
    """
    if version and not re.fullmatch("[0-9]+", version):
        raise InvalidRequest(f"failed to get model version from specified version string '{version}'")
    return describe.find(call.catalog, name, version or describe.VERSION)
