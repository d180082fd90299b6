"""Requests of OpenAI's protocol. None means absent, as does an explicit null."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.openai.extra_content import ExtraContent


class ImageUrl(msgspec.Struct, frozen=True):
    """The URL of an image: http(s) or `data:`."""

    url: str
    detail: str | None = None


class VideoUrl(msgspec.Struct, frozen=True):
    """The URL of a video (vLLM)."""

    url: str


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content. In MindIE's protocol `image_url` is a plain string.

    `image_embeds`, `video_url` and `audio_url` are vLLM's. Embeddings are the base64 of a tensor's file, alone or as
    `{"image_embeds": …, "image_grid_thw": …}`. Audio and files are for servers that are sent the body.
    """

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None
    image_embeds: str | dict[str, str] | None = None
    video_url: VideoUrl | str | None = None
    audio_url: Any = None
    input_audio: Any = None
    file: Any = None


class FunctionCall(msgspec.Struct, frozen=True):
    """A function call; `arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, in a conversation or in an answer. `extra_content` is Google's, for the signature of a thought.

    A call of a tool that is no function has its fields under the name of its type.
    """

    id: str
    type: str = "function"
    function: FunctionCall | None = None
    extra_content: ExtraContent | msgspec.UnsetType | None = msgspec.UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. `reasoning_content` (or `reasoning`) is an extension of vLLM and others.

    `function_call` and the role "function" are the deprecated form of tool calls and their results.
    """

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: FunctionCall | None = None
    audio: Any = None


class Function(msgspec.Struct, frozen=True):
    """A function; `parameters` is a JSON schema, and None means that it has no parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call. Only the type "function" is supported."""

    type: str
    function: Function | None = None


class FunctionName(msgspec.Struct, frozen=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A tool by name."""

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
    """A named JSON schema that the answer must match."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form of the answer. `value` is TGI's: a schema for type "json_object", a pattern for "regex"."""

    type: str
    json_schema: JsonSchema | None = None
    value: Any = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`continuous_usage_stats` (vLLM's): usage so far in every chunk. `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's constraint on the text: one of the first five. `json` is a schema, or its text. The others are hints."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: Any = None
    disable_any_whitespace: Any = None
    disable_additional_properties: Any = None
    whitespace_pattern: Any = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The common fields of chats and completions. The second half are extensions of vLLM, SGLang and TGI."""

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

    # Extensions from here on, under the names of vLLM, SGLang and TGI.
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
    best_of: int | None = None
    bad_words: str | tuple[str, ...] | None = None
    # Constraints on the text: vLLM's former names, its present one, and SGLang's.
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: tuple[str, ...] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    # For servers of the same dialect alone (`adapters.openai.inbound.extensions`), hence of any type.
    use_beam_search: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    logits_processors: Any = None
    custom_logit_processor: Any = None
    allowed_token_ids: Any = None
    prompt_logprobs: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    return_hidden_states: Any = None
    spaces_between_special_tokens: Any = None
    separate_reasoning: Any = None
    include_reasoning: Any = None
    lora_path: Any = None
    add_special_tokens: Any = None
    documents: Any = None
    mm_processor_kwargs: Any = None
    structural_tag: Any = None
    # Hints about scheduling and logs, on which no answer depends.
    priority: Any = None
    request_id: Any = None


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
    # Hints: passed on to remotes that take them, never interpreted, hence of any type.
    prediction: Any = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: tuple[str, ...] | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    # Deprecated in favour of tools. `function_call` is "none", "auto" or a name.
    functions: tuple[Function, ...] | None = None
    function_call: str | FunctionName | None = None
    chat_template: Any = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`. `prompt` is a text, texts, token ids, or lists of token ids; never a mixture."""

    # msgspec cannot express "all items of one type", so `read_prompts` checks it.
    prompt: str | tuple[str | int | tuple[int, ...], ...]
    suffix: str | None = None
    logprobs: int | None = None


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/embeddings`. The official SDKs set `encoding_format` to base64 by default."""

    input: str | tuple[str | int | tuple[int, ...], ...]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
