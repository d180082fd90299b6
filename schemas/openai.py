"""Wire structs of the OpenAI protocol: chat, completions, embeddings, models, errors. MindIE, Databricks use them too.

Field order is byte order on the wire. Bounds and defaults vary by dialect and are checked in `adapters.openai`.
Sources: openai/openai-openapi:openapi.yaml (2.3.0); recorded streams in openai/openai-python:.inline-snapshot/external;
MindIE's page "推理接口"; the extensions are vLLM's, SGLang's and TGI's names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Count = Annotated[int, msgspec.Meta(ge=0)]

# --- requests: None is "not given", as is an explicit null -------------------------------------------------------


class ImageUrl(msgspec.Struct, frozen=True):
    """Where a picture is: http(s), or a `data:` URL."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message, by `type`. MindIE gives `image_url` as a plain string."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON as a string, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, in a conversation and in an answer."""

    id: str
    type: str = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn. `reasoning_content` (or `reasoning`) is what vLLM and others take back."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: Any = None
    audio: Any = None


class Function(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema; without it the function takes none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """What the model may call. Only type "function" is served."""

    type: str
    function: Function | None = None


class FunctionName(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A tool by its name."""

    type: str
    function: FunctionName | None = None


class AllowedTools(msgspec.Struct, frozen=True):
    """The tools of which the model may (`auto`) or must (`required`) call one."""

    mode: Literal["auto", "required"]
    tools: tuple[NamedTool, ...]


class ToolChoice(msgspec.Struct, frozen=True):
    """`{"type": "function", "function": {"name"}}` or `{"type": "allowed_tools", "allowed_tools": {…}}`."""

    type: str
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """A schema that an answer must match, by `name`."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """What form an answer must have. `value` is TGI's: a schema beside type "json_object", a pattern beside "regex"."""

    type: str
    json_schema: JsonSchema | None = None
    value: Any = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`continuous_usage_stats` is vLLM's: usage so far in every chunk. Obfuscation is not done, whatever is said."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completions have in common. The second half are vLLM's, SGLang's and TGI's extensions."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | tuple[str, ...] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: tuple[ChatMessage, ...]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    prediction: Any = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: tuple[str, ...] | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`. `prompt` is a text, texts, token ids, or lists of token ids; never a mixture."""

    prompt: str | tuple[str | int | tuple[int, ...], ...]
    best_of: int | None = None
    suffix: str | None = None
    logprobs: int | None = None


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/embeddings`. The official SDKs ask for base64 unless told otherwise."""

    input: str | tuple[str | int | tuple[int, ...], ...]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


# --- answers ------------------------------------------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those that were cached."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens, those that were reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts; the details are left out where they are not known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position. `bytes` because a token may be half a character."""

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
    """Parallel lists, one item a token. `text_offset` counts characters of the choice's text."""

    text_offset: tuple[int, ...]
    token_logprobs: tuple[float | None, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said. `content` is null beside tool calls."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | UnsetType | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer of a chat."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One completion, or a chunk of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | UnsetType | None
    finish_reason: str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer of `/v1/completions`."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    """The name comes once, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """`id` and `type` come with the first piece of a call and never again."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds. The service's own first chunks: content "" and refusal null, or null and "" (a refusal)."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one answer of a chat."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | UnsetType | None
    finish_reason: str | None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat; `choices` is empty in the one that tells the usage."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: tuple[ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Vectors have no completion tokens."""

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
    """One served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    parent: str | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/models`."""

    object: str = "list"
    data: tuple[Model, ...]


class Error(msgspec.Struct, frozen=True):
    """All four keys are required."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, frozen=True):
    """Any error, as a body or as an event."""

    error: Error


class MindieErrorResponse(msgspec.Struct, frozen=True):
    """Any error of MindIE, the same on all its URLs."""

    error: str
    error_type: str


# --- what remotes send: nothing insisted on that one of them leaves out -------------------------------------------


class RemoteTop(msgspec.Struct, frozen=True):
    """One of the likeliest tokens."""

    token: str
    logprob: float | None = None
    bytes: tuple[Annotated[int, msgspec.Meta(ge=0, le=255)], ...] | None = None


class RemoteToken(RemoteTop, frozen=True):
    """One token of a chat."""

    top_logprobs: tuple[RemoteTop, ...] | None = None


class RemoteLogprobs(msgspec.Struct, frozen=True):
    """Either form: a chat's `content`, or the parallel lists of completions."""

    content: tuple[RemoteToken, ...] | None = None
    refusal: tuple[RemoteToken, ...] | None = None
    tokens: tuple[str, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None
    text_offset: tuple[int, ...] | None = None


class RemotePart(msgspec.Struct, frozen=True):
    """A piece of content where it is a list: Databricks' reasoning models."""

    type: str = "text"
    text: str | None = None
    summary: tuple[RemotePart, ...] | None = None


class RemoteFunction(msgspec.Struct, frozen=True):
    """A function call, or a piece of one."""

    name: str | None = None
    arguments: str | None = None


class RemoteToolCall(msgspec.Struct, frozen=True):
    """A tool call, or a piece of one."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1024)] | None = None
    id: str | None = None
    function: RemoteFunction | None = None


class RemoteMessage(msgspec.Struct, frozen=True):
    """A message, or what a chunk adds to it."""

    content: str | tuple[RemotePart, ...] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[RemoteToolCall, ...] | None = None


class RemoteChoice(msgspec.Struct, frozen=True):
    """A choice of any kind of answer. `stop_reason` is vLLM's: the stop string or the stop token that matched."""

    index: int = 0
    message: RemoteMessage | None = None
    delta: RemoteMessage | None = None
    text: str | None = None
    logprobs: RemoteLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class RemotePromptDetails(msgspec.Struct, frozen=True):
    """Details of a prompt's count."""

    cached_tokens: Count | None = None


class RemoteCompletionDetails(msgspec.Struct, frozen=True):
    """Details of an answer's count."""

    reasoning_tokens: Count | None = None


class RemoteUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: Count = 0
    completion_tokens: Count | None = None
    prompt_tokens_details: RemotePromptDetails | None = None
    completion_tokens_details: RemoteCompletionDetails | None = None


class RemoteEmbedding(msgspec.Struct, frozen=True):
    """One vector: numbers, or base64."""

    embedding: tuple[float, ...] | str
    index: int | None = None


class RemoteEmbeddings(msgspec.Struct, frozen=True):
    """Vectors. An error has no `data`."""

    data: tuple[RemoteEmbedding, ...] | None = None
    model: str | None = None
    usage: RemoteUsage | None = None


class RemoteAnswer(msgspec.Struct, frozen=True):
    """A whole answer, one event, or an error of either, in OpenAI's, TGI's, vLLM's or Databricks' form."""

    model: str | None = None
    choices: tuple[RemoteChoice, ...] | None = None
    usage: RemoteUsage | None = None
    object: str | None = None
    error: Any = None
    error_type: str | None = None
    error_code: str | None = None
    message: str | None = None
    code: Any = None
