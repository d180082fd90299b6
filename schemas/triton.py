"""Triton's HTTP protocol as wire structs: KServe v2 (metadata, infer), its extensions, and the generate extension.

Bodies of `generate` are decoded as ordered pairs (`adapters/triton/generate/body.py`), because duplicate keys are
errors and the meaning of a key depends on the model; `GenerateRequest` and `GenerateResponse` are documentation only.
Source: kserve's "Open Inference Protocol" and triton-inference-server/server:docs/protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

# Request parameters are scalars in Triton: arrays and objects are refused.
Scalar = str | bool | int | float


class ErrorBody(msgspec.Struct, frozen=True):
    """Any error; `error_type` is MindIE's."""

    error: str
    error_type: str | UnsetType = UNSET


# --- generate ---------------------------------------------------------------------------------------------------


class GenerateRequest(msgspec.Struct, frozen=True):
    """Body of `generate`. Members may also stand in `parameters`; other members are model inputs or parameters."""

    text_input: str
    id: str = ""
    parameters: dict[str, Scalar] = {}


class GenerateResponse(msgspec.Struct, frozen=True):
    """One response: the only one of `generate`, or one frame of `generate_stream`."""

    model_name: str
    model_version: str
    text_output: str
    id: str = ""


class Details(msgspec.Struct, frozen=True):
    """MindIE's `details`. The last four are numbers, in non-streamed answers arrays of numbers; null if not known."""

    finish_reason: str | UnsetType | None = UNSET
    generated_tokens: int | None = None
    first_token_cost: Any = None
    decode_cost: Any = None
    batch_size: Any = None
    queue_wait_time: Any = None


class RemoteResponse(msgspec.Struct, frozen=True):
    """The fields of a remote's response that are read; values are arrays where there are several choices."""

    model_name: str | None = None
    text_output: str | list[str] | None = None
    finish_reason: str | list[str] | None = None
    logprobs: str | list[str] | None = None
    num_input_tokens: int | None = None
    num_output_tokens: int | list[int] | None = None
    details: Details | None = None
    # Triton's is a string; another form must still count as an error.
    error: Any = None


class RemoteLogprob(msgspec.Struct, frozen=True):
    """vLLM's `Logprob`; `rank` 1 is the most likely token of its position."""

    logprob: float | None = None
    rank: int | None = None
    decoded_token: str | None = None


# --- infer ------------------------------------------------------------------------------------------------------


class InputTensor(msgspec.Struct, frozen=True):
    """An input. `data` is a flat or nested array; a binary tensor has `parameters.binary_data_size` instead."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class RequestedOutput(msgspec.Struct, frozen=True):
    """A requested output; `parameters.binary_data` requests it as bytes."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct, frozen=True):
    """Body of `infer`. Without `outputs` the server chooses them."""

    inputs: tuple[InputTensor, ...]
    id: str | None = None
    outputs: tuple[RequestedOutput, ...] | None = None
    parameters: dict[str, Any] | None = None


class OutputTensor(msgspec.Struct, frozen=True):
    """An output. `data` is flat, row by row."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class InferResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `infer`; the bytes of binary tensors follow it in the body, in order."""

    id: str | UnsetType = UNSET
    model_name: str
    model_version: str
    outputs: tuple[OutputTensor, ...]


# --- what is served ---------------------------------------------------------------------------------------------


class ServerMetadata(msgspec.Struct, frozen=True):
    """`GET /v2`."""

    name: str
    version: str
    extensions: tuple[str, ...]


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor's name, type and shape, in which -1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(msgspec.Struct, frozen=True):
    """`GET /v2/models/{model}`."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class LatestVersions(msgspec.Struct, frozen=True):
    """The number of versions served at once."""

    num_versions: int = 1


class VersionPolicy(msgspec.Struct, frozen=True):
    """The versions that are served."""

    latest: LatestVersions = LatestVersions()


class InputConfig(msgspec.Struct, frozen=True):
    """An input, as model_config.proto writes it in JSON."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    format: str = "FORMAT_NONE"
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False


class OutputConfig(msgspec.Struct, frozen=True):
    """An output, as model_config.proto writes it in JSON."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    label_filename: str = ""
    is_shape_tensor: bool = False


class TransactionPolicy(msgspec.Struct, frozen=True):
    """`decoupled`: whether a request may have any number of responses."""

    decoupled: bool


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v2/models/{model}/config`. `max_batch_size` 0: requests carry no batch dimension of their own."""

    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy = VersionPolicy()
    max_batch_size: int = 0
    input: tuple[InputConfig, ...]
    output: tuple[OutputConfig, ...]
    instance_group: tuple[dict[str, Any], ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: dict[str, str] = {}
    metric_tags: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    model_warmup: tuple[dict[str, Any], ...] = ()
    model_transaction_policy: TransactionPolicy = TransactionPolicy(decoupled=True)


class Duration(msgspec.Struct, frozen=True):
    """A count and the total time in nanoseconds."""

    count: int = 0
    ns: int = 0


class InferenceStats(msgspec.Struct, frozen=True):
    """The time that requests spent, by stage."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class ModelStats(msgspec.Struct, frozen=True):
    """Statistics of one version of one model; `last_inference` in milliseconds since the epoch."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStats
    # Always empty: not measured.
    response_stats: dict[str, Any] = {}
    batch_stats: tuple[dict[str, Any], ...] = ()
    memory_usage: tuple[dict[str, Any], ...] = ()


class Statistics(msgspec.Struct, frozen=True):
    """`GET …/stats`."""

    model_stats: tuple[ModelStats, ...]


class IndexRequest(msgspec.Struct, frozen=True):
    """Body of `/v2/repository/index`. `ready`: list only models that are ready."""

    ready: bool = False


class IndexEntry(msgspec.Struct, frozen=True):
    """A model in the repository index; `state` is READY or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str
