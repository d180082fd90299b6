"""Answers to clients: complete answers, chunks, embeddings, listings and errors. UNSET fields are omitted."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from schemas.openai.extra_content import ExtraContent
from schemas.openai.requests import FunctionCall, ToolCall


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """The number of the prompt's tokens that were cached."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """The number of the answer's tokens that were reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts; details that are not known are omitted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position. `bytes`, because a token may be half a character."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of an answer."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a message, or of one chunk of it."""

    content: tuple[TokenLogprob, ...] | None
    refusal: tuple[TokenLogprob, ...] | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists with one item per token. `text_offset` counts characters of the choice's text."""

    text_offset: tuple[int, ...]
    token_logprobs: tuple[float | None, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]


class PromptToken(msgspec.Struct, frozen=True):
    """One token of vLLM's `prompt_logprobs`. `rank` is its place among the most likely ones, from 1; null beyond."""

    logprob: float
    rank: int | None
    decoded_token: str


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of an answer. `content` is null beside tool calls, whose deprecated form is `function_call`."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET
    # Always empty: annotations are citations of a search that runs at OpenAI.
    annotations: tuple[()] | UnsetType = UNSET


PromptLogprobs = tuple[dict[str, PromptToken] | None, ...]
"""vLLM's: the token and its alternatives by their ids, for each token of a prompt but the first."""


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat. `token_ids` is vLLM's."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | UnsetType | None
    finish_reason: str
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer of `/v1/chat/completions`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One completion, or a chunk of it. The last three are vLLM's."""

    text: str
    index: int
    logprobs: CompletionLogprobs | UnsetType | None
    finish_reason: str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer of `/v1/completions`."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    """A piece of a function call: the name once, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a tool call. Only the first piece has `id` and `type`, and `extra_content`, as in `ToolCall`."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta
    extra_content: ExtraContent | UnsetType = UNSET


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds. OpenAI's first chunk has content "" and refusal null, or null and "" for a refusal."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one answer of a chat."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | UnsetType | None
    finish_reason: str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts of a request for embeddings, which has no completion tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True):
    """One vector: numbers, or base64 of little-endian 32-bit floats."""

    object: str
    index: int
    embedding: tuple[float, ...] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/embeddings`. Databricks' has an `id`."""

    id: str | UnsetType = UNSET
    object: str = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One served model. `root` is the model that an alias stands for, `parent` the base model of a LoRA adapter.

    `max_model_len`, vLLM's, is the context length in tokens, where it is known.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/models`."""

    object: str = "list"
    data: tuple[Model, ...]


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error. The first four keys are required; `failed_generation` is Groq's."""

    message: str
    type: str
    # Nullable but required in openapi.yaml, as is `code`.
    param: str | None
    code: str | None
    failed_generation: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error, as a body or as an event."""

    error: Error


class MindieErrorResponse(msgspec.Struct, frozen=True):
    """Any error of MindIE."""

    error: str
    error_type: str
