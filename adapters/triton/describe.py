"""Routes that run no model: health, metadata, configuration, statistics, the model repository."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from adapters.base import Call, Reply, Route
from adapters.body import parse
from adapters.triton import tensors
from adapters.triton.dialects import Dialect
from adapters.unknown_fields import find_unknown, ignored_header
from schemas.catalog import Catalog, ModelCard
from schemas.errors import InvalidRequest, ModelNotFound, RouteNotFound
from schemas.triton import (
    Duration,
    ErrorBody,
    IndexEntry,
    IndexRequest,
    InferenceStats,
    InputConfig,
    ModelConfig,
    ModelMetadata,
    ModelStats,
    OutputConfig,
    ServerMetadata,
    Statistics,
    TensorMetadata,
)

NAME = "interlingua"
VERSION = "1"
"""The only version of every model. What an endpoint serves may change, its version for clients does not."""

EXTENSIONS = (
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
    "generate_stream",
)
NO_MODEL_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
"""Triton's answer to load and unload without `--model-control-mode=explicit` (its code UNAVAILABLE, status 503)."""


def model(call: Call) -> ModelCard:
    """The endpoint that the path names.

    Raises:
        schemas.errors.RouteNotFound: the version is not a number, which Triton's route patterns do not match.
        schemas.errors.ModelNotFound: the model or version does not exist.
    """
    version = call.path.get("version")
    if version is None:
        return find(call.catalog, call.path["model"], VERSION)
    # Triton routes by regular expressions with `versions/([0-9]+)`: another word is an unknown path, not a model.
    if not re.fullmatch("[0-9]+", version):
        raise RouteNotFound("Not Found")
    return find(call.catalog, call.path["model"], version)


def find(catalog: Catalog, name: str, version: str) -> ModelCard:
    """The endpoint of a name, whose version is a number.

    Raises:
        schemas.errors.ModelNotFound: the model or version does not exist.
    """
    card = catalog.find(name)
    if card is None:
        raise ModelNotFound(f"Request for unknown model: '{name}' is not found")
    # As a number: "01" is version 1.
    if version.lstrip("0") != VERSION:
        raise ModelNotFound(f"Request for unknown model: '{name}' version {version} is not found")
    return card


def describe(dialect: Dialect, route: Route, call: Call, body: bytes) -> Reply:
    """Answer a route that runs no model."""
    match route.name.removesuffix("_version"):
        case "live":
            return Reply()
        case "ready":
            # KServe v2: status 200 is ready, a 4xx status is not; Triton answers 400.
            return Reply(status=200 if call.catalog.ready else 400)
        case "server":
            return _json(server(call.catalog))
        case "all_stats":
            return _json(statistics(call.catalog.cards.values()))
        case "index":
            return _list_models(dialect, call.catalog, body)
        # The configuration determines the models. Like Triton, without a look at the model's name.
        case "load" | "unload":
            return Reply(msgspec.json.encode(ErrorBody(NO_MODEL_CONTROL)), status=503)
        case operation:
            return _describe_model(operation, model(call))


def _describe_model(operation: str, card: ModelCard) -> Reply:
    match operation:
        case "model":
            return _json(metadata(card))
        case "config":
            return _json(config(card))
        case "stats":
            return _json(statistics([card]))
        case "model_ready" if not card.ready:
            return Reply(msgspec.json.encode(ErrorBody("Model version not ready")), status=400)
        case "model_ready":
            return Reply()
    raise RouteNotFound("Not Found")


def _json(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))


def _list_models(dialect: Dialect, catalog: Catalog, body: bytes) -> Reply:
    """The repository index. Its body may be empty."""
    given = parse(body) if body else {}
    unknown = find_unknown(given, IndexRequest)
    if unknown and dialect.requests.strict:
        raise InvalidRequest(dialect.wording.unknown.format(name=unknown[0]), param=unknown[0])
    only_ready = given.get("ready", False) if isinstance(given, dict) else False
    if not isinstance(only_ready, bool):
        raise InvalidRequest("Invalid value for 'ready': expected a boolean", param="ready")
    return Reply(msgspec.json.encode(index(catalog, only_ready=only_ready)), headers=ignored_header(unknown))


def index(catalog: Catalog, *, only_ready: bool) -> tuple[IndexEntry, ...]:
    """The models of the repository."""
    return tuple(
        IndexEntry(card.name, VERSION, "READY" if card.ready else "UNAVAILABLE", "")
        for card in catalog.cards.values()
        if card.ready or not only_ready
    )


def server(catalog: Catalog) -> ServerMetadata:
    """The metadata of the server."""
    return ServerMetadata(NAME, catalog.version, EXTENSIONS)


def metadata(card: ModelCard) -> ModelMetadata:
    """The metadata of a model."""
    inputs, outputs = _tensor_metadata(tensors.inputs(card)), _tensor_metadata(tensors.outputs(card))
    return ModelMetadata(card.name, (VERSION,), NAME, inputs, outputs)


def _tensor_metadata(known: dict[str, tensors.Tensor]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(name, tensor.datatype, tensor.dims) for name, tensor in known.items())


def config(card: ModelCard) -> ModelConfig:
    """The configuration of a model."""
    return ModelConfig(
        name=card.name,
        platform=NAME,
        backend=NAME,
        input=tuple(
            InputConfig(name, tensors.TYPES[tensor.datatype], tensor.dims, optional=tensor.optional)
            for name, tensor in tensors.inputs(card).items()
        ),
        output=tuple(
            OutputConfig(name, tensors.TYPES[tensor.datatype], tensor.dims)
            for name, tensor in tensors.outputs(card).items()
        ),
    )


def statistics(cards: Iterable[ModelCard]) -> Statistics:
    """The statistics of models."""
    return Statistics(tuple(map(_stats, cards)))


def _stats(card: ModelCard) -> ModelStats:
    counts = card.counts
    answered = Duration(counts.succeeded, counts.succeeded_ns)
    untimed = Duration(counts.succeeded)  # the same count; these stages are not timed separately
    return ModelStats(
        name=card.name,
        version=VERSION,
        last_inference=counts.last_ms,
        inference_count=counts.succeeded,
        # Triton counts a batch as one execution; batches are not counted here.
        execution_count=counts.succeeded,
        inference_stats=InferenceStats(
            success=answered,
            fail=Duration(counts.failed, counts.failed_ns),
            queue=untimed,
            compute_input=untimed,
            # The whole time of a request counts as inference.
            compute_infer=answered,
            compute_output=untimed,
        ),
    )
