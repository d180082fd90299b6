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

# --- requests: None means absent, as does an explicit null --------------------------------------------------------


class InputPart(msgspec.Struct, frozen=True):
    """A part of MindIE's multimodal prompts. `image_url` is a plain string: a URL, a path or base64."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: str | None = None


class GrammarSpec(msgspec.Struct, frozen=True):
    """A grammar. `value`: a schema (json, json_object), a pattern (regex) or `{name, schema, strict}` (json_schema)."""

    type: Literal["json", "json_object", "regex", "json_schema"]
    value: Any = None


# One struct for all dialects: unknown parameters of a dialect are taken out before the conversion, so that they are not
# checked.
class Parameters(msgspec.Struct, frozen=True):
    """The parameters of all dialects; each dialect knows some of them."""

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
    # A string is MindIE's; `adapters.tgi.checks` refuses it in TGI's dialects.
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


class VertexRequest(msgspec.Struct, frozen=True):
    """Body of `/vertex`: bodies of `/generate`, or chats in OpenAI's form."""

    instances: tuple[dict[str, Any], ...]


# --- answers ------------------------------------------------------------------------------------------------------


class Token(msgspec.Struct, frozen=True):
    """A generated token. `special` is a boolean in TGI, whose own client requires it, and null in MindIE."""

    id: int
    text: str
    logprob: float | None
    special: bool | None


class PrefillToken(msgspec.Struct, frozen=True):
    """A token of the prompt; the `logprob` of the first one is null."""

    id: int
    text: str
    logprob: float | None


class BestOfSequence(msgspec.Struct, frozen=True):
    """One of the answers other than the best."""

    generated_text: str
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: tuple[PrefillToken, ...]
    tokens: tuple[Token, ...]
    top_tokens: tuple[tuple[Token, ...], ...] | UnsetType = UNSET


class Details(msgspec.Struct, frozen=True):
    """Details of an answer. Without values `best_of_sequences` and `top_tokens` are omitted, not null."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: tuple[PrefillToken, ...]
    tokens: tuple[Token, ...]
    best_of_sequences: tuple[BestOfSequence, ...] | UnsetType = UNSET
    top_tokens: tuple[tuple[Token, ...], ...] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, frozen=True):
    """A complete answer; `details` only if requested."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the last frame. MindIE counts the prompt in `prompt_tokens`, TGI 3 in `input_length`, TGI 0.9 not."""

    prompt_tokens: int | UnsetType = UNSET
    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int | UnsetType = UNSET


class StreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One frame. `index` counts from 1 (not in 0.9); the last two fields are null before the last frame."""

    index: int | UnsetType = UNSET
    token: Token
    top_tokens: tuple[Token, ...] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class MindieToken(msgspec.Struct, frozen=True):
    """A token of MindIE's non-streamed answers, which have its id only."""

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
    """MindIE's `GenerateResponse`, with the details first."""

    details: MindieDetails | UnsetType = UNSET
    generated_text: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error, as a body or as a frame."""

    error: str
    error_type: str


class SimpleToken(msgspec.Struct, frozen=True):
    """One token in the answer of `/tokenize`. `start` and `stop` count bytes of the UTF-8 text."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokens(msgspec.Struct, frozen=True):
    """Answer of `/chat_tokenize`: the tokens of the rendered template, and its text."""

    tokenize_response: tuple[SimpleToken, ...]
    templated_text: str


class VertexResponse(msgspec.Struct, frozen=True):
    """Answer of `/vertex`: a text for each instance."""

    predictions: tuple[str, ...]


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
    """One model in MindIE's `/info`."""

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


# --- answers of remotes: the fields of all dialects; those that any known server omits are optional ----------------


class RemoteToken(msgspec.Struct, frozen=True):
    """A token. MindIE of 2026 sends a list of ids, and null for what it does not know."""

    id: int | tuple[int, ...] = 0
    text: str | None = None
    logprob: float | None = None
    special: bool | None = None


class RemoteSequence(msgspec.Struct, frozen=True):
    """Details of one complete answer, from a body or the last frame."""

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
    """A complete answer, one frame, or an error of either."""

    generated_text: str | None = None
    details: RemoteSequence | None = None
    token: RemoteToken | None = None
    top_tokens: tuple[RemoteToken, ...] | None = None
    error: str | None = None
    error_type: str | None = None
