"""Wire structs of Hugging Face's text-generation-inference (TGI) and of MindIE's version of it.

Field order is byte order on the wire. Bounds and defaults vary by dialect and are checked in `adapters.tgi`.
Sources: huggingface/text-generation-inference:router/src/lib.rs (3.3 and v0.9.4); MindIE's page "TGI流式推理接口" and
Ascend/MindIE-LLM:src/server/endpoint.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Count = Annotated[int, msgspec.Meta(ge=0)]

# --- requests: None is "not given", as is an explicit null -------------------------------------------------------


class InputPart(msgspec.Struct, frozen=True):
    """MindIE: a piece of a multimodal prompt. `image_url` is a plain string: a URL, a path or base64."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: str | None = None


class GrammarSpec(msgspec.Struct, frozen=True):
    """`value` is a schema (json, json_object), a pattern (regex) or `{name, schema, strict}` (json_schema)."""

    type: Literal["json", "json_object", "regex", "json_schema"]
    value: Any = None


class Parameters(msgspec.Struct, frozen=True):
    """Every parameter of any dialect; which of them a dialect knows is its own business."""

    adapter_id: str | None = None
    best_of: int | None = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: float | None = None
    grammar: GrammarSpec | None = None
    max_new_tokens: int | None = None
    repetition_penalty: float | None = None
    return_full_text: bool | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_n_tokens: int | None = None
    top_p: float | None = None
    truncate: int | None = None
    typical_p: float | None = None
    watermark: bool | None = None


class GenerateRequest(msgspec.Struct, frozen=True):
    """Body of `/generate`, `/generate_stream` and `/tokenize`."""

    inputs: str | tuple[InputPart, ...]
    parameters: Parameters | None = None


class CompatGenerateRequest(GenerateRequest, frozen=True):
    """Body of `/`."""

    stream: bool | None = None


# --- answers ------------------------------------------------------------------------------------------------------


class Token(msgspec.Struct, frozen=True):
    """`special` is a boolean upstream (TGI's own client insists) and null in MindIE."""

    id: int
    text: str
    logprob: float | None
    special: bool | None


class PrefillToken(msgspec.Struct, frozen=True):
    """A token of the prompt; the first one has no `logprob`."""

    id: int
    text: str
    logprob: float | None


class BestOfSequence(msgspec.Struct, frozen=True):
    """One of the answers that were not the best."""

    generated_text: str
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: tuple[PrefillToken, ...]
    tokens: tuple[Token, ...]
    top_tokens: tuple[tuple[Token, ...], ...] | UnsetType = UNSET


class Details(msgspec.Struct, frozen=True):
    """`best_of_sequences` and `top_tokens` are left out, not null, where there are none."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: tuple[PrefillToken, ...]
    tokens: tuple[Token, ...]
    best_of_sequences: tuple[BestOfSequence, ...] | UnsetType = UNSET
    top_tokens: tuple[tuple[Token, ...], ...] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, frozen=True):
    """A whole answer; `details` is left out unless asked for."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """MindIE counts the prompt first (`prompt_tokens`), TGI 3 last (`input_length`), TGI 0.9 not at all."""

    prompt_tokens: int | UnsetType = UNSET
    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int | UnsetType = UNSET


class StreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One frame. `index` counts from 1 and came after 0.9; both nulls are written out until the last frame."""

    index: int | UnsetType = UNSET
    token: Token
    top_tokens: tuple[Token, ...] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class MindieToken(msgspec.Struct, frozen=True):
    """MindIE's whole answers tell a token's id only."""

    id: int
    logprob: None = None
    special: None = None
    text: None = None


class MindieDetails(msgspec.Struct, frozen=True):
    """MindIE's `Details`."""

    prompt_tokens: int
    finish_reason: str
    generated_tokens: int
    prefill: tuple[MindieToken, ...]
    seed: int | None
    tokens: tuple[MindieToken, ...]


class MindieResponse(msgspec.Struct, frozen=True, kw_only=True):
    """MindIE's `GenerateResponse`: the details come first."""

    details: MindieDetails | UnsetType = UNSET
    generated_text: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error, as a body or as a frame."""

    error: str
    error_type: str


class SimpleToken(msgspec.Struct, frozen=True):
    """Answer of `/tokenize`, one a token. `start` and `stop` count bytes of the UTF-8 text."""

    id: int
    text: str
    start: int
    stop: int


# --- /info --------------------------------------------------------------------------------------------------------


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """`/info` of TGI 3."""

    model_id: str
    model_sha: str | None = None
    model_pipeline_tag: str | None = "text-generation"
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int = 1
    max_client_batch_size: int = 1
    router: str = "interlingua"
    version: str
    sha: str | None = None
    docker_label: str | None = None
    adapters: tuple[str, ...] | UnsetType = UNSET


class Info09(msgspec.Struct, frozen=True, kw_only=True):
    """`/info` of TGI 0.9."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str | None = "text-generation"
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_length: int
    max_total_tokens: int
    waiting_served_ratio: float = 0.0
    max_batch_total_tokens: int
    max_waiting_tokens: int = 0
    validation_workers: int = 1
    version: str
    sha: str | None = None
    docker_label: str | None = None


class MindieModel(msgspec.Struct, frozen=True, kw_only=True):
    """One of the models that MindIE's `/info` lists."""

    model_device_type: str | None
    model_dtype: str | None
    model_id: str
    model_pipeline_tag: str = "text-generation"
    model_sha: str | None = None
    max_total_tokens: int


class MindieInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`/info` of MindIE."""

    docker_label: str | None = None
    max_batch_total_tokens: int | None = None
    max_best_of: int = 1
    max_concurrent_requests: int
    max_stop_sequences: int | None = None
    max_waiting_tokens: int | None = None
    sha: str | None = None
    validation_workers: int | None = None
    version: str
    waiting_served_ratio: float | None = None
    models: tuple[MindieModel, ...]
    max_input_length: int


# --- what remotes send: every dialect's fields, nothing insisted on that one of them leaves out -------------------


class RemoteToken(msgspec.Struct, frozen=True):
    """MindIE of 2026 sends a list of ids, and nulls for what it does not tell."""

    id: int | tuple[int, ...] = 0
    text: str | None = None
    logprob: float | None = None
    special: bool | None = None


class RemoteSequence(msgspec.Struct, frozen=True):
    """What is told of one finished answer, whole or in the last frame."""

    finish_reason: str
    generated_tokens: Count
    generated_text: str = ""
    seed: int | None = None
    input_length: Count | None = None
    prompt_tokens: Count | None = None
    prefill: tuple[RemoteToken, ...] = ()
    tokens: tuple[RemoteToken, ...] = ()
    top_tokens: tuple[tuple[RemoteToken, ...], ...] | None = None
    best_of_sequences: tuple[RemoteSequence, ...] | None = None


class RemoteAnswer(msgspec.Struct, frozen=True):
    """A whole answer, one frame, or an error of either."""

    generated_text: str | None = None
    details: RemoteSequence | None = None
    token: RemoteToken | None = None
    top_tokens: tuple[RemoteToken, ...] | None = None
    error: str | None = None
    error_type: str | None = None
