"""OpenAI's Responses API on the wire: `/v1/responses`.

Source: OpenAI's API reference (openai-openapi, CreateResponse and ResponseStreamEvent).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.openai.answers import TokenLogprob
from schemas.openai.extra_content import ExtraContent


class Part(msgspec.Struct, frozen=True):
    """A part of content: `input_text`, `output_text`, `refusal` or `input_image`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None
    # Of texts that come back as they were answered. No model reads them.
    annotations: Any = None
    logprobs: Any = None


class Item(msgspec.Struct, frozen=True):
    """One item of the input: a message, a function call, or a function's output."""

    # The "easy" form of a message has no type.
    type: str = "message"
    role: str | None = None
    content: str | tuple[Part, ...] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | tuple[Part, ...] | None = None
    summary: Any = None
    extra_content: ExtraContent | None = None  # of a call, as in chats
    encrypted_content: str | None = None  # of a compaction, or of reasoning
    # Of items that come back as they were answered. No model here reads them.
    status: Any = None
    phase: Any = None


class Tool(msgspec.Struct, frozen=True):
    """A tool. All types but functions run at OpenAI only."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(msgspec.Struct, frozen=True):
    """The tool that must be called, or the tools to choose from."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: tuple[Tool, ...] = ()


class Format(msgspec.Struct, frozen=True):
    """The form of the text."""

    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class Text(msgspec.Struct, frozen=True):
    """Options of the text."""

    format: Format | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """Options of reasoning."""

    effort: str | None = None
    summary: str | None = None


class ConversationName(msgspec.Struct, frozen=True):
    """A conversation by its id."""

    id: str


class CompactRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/responses/compact`. `instructions` are for the summary alone."""

    model: str | None = None
    input: str | tuple[Item, ...] | None = None
    instructions: str | None = None
    # Refused by name, or a label.
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/responses`."""

    # May be absent where something else has items or stands for them: see `adapters.openai.responses.decode`.
    input: str | tuple[Item, ...] | None = None
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    truncation: str | None = None
    include: tuple[str, ...] | None = None
    stream_options: Any = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    background: bool | None = None
    # Refused by the decoder if set, hence of any type.
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None


# --- answers ------------------------------------------------------------------------------------------------------


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    """Text of a message."""

    # Always empty: annotations are citations of tools that run at OpenAI. openapi.yaml requires the field.
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    text: str = ""


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A refusal in a message."""

    refusal: str = ""


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    """Text of a reasoning item."""

    text: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message of the model."""

    id: str
    status: str
    content: tuple[OutputText | Refusal, ...] = ()
    role: Literal["assistant"] = "assistant"


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A function call; `arguments` is JSON text, and `extra_content` as in chats."""

    id: str
    status: str
    arguments: str = ""
    call_id: str
    name: str
    extra_content: ExtraContent | msgspec.UnsetType = msgspec.UNSET


class Thought(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """A reasoning item."""

    id: str
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...] = ()
    status: str


Output = Message | FunctionCall | Thought


class InputDetails(msgspec.Struct, frozen=True):
    """The numbers of input tokens that were read from a cache, and that were written to one at extra cost."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """The number of output tokens that were reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Compaction(msgspec.Struct, frozen=True):
    """A conversation that was made shorter: its `output` is the input of the next request."""

    id: str
    created_at: int
    output: tuple[dict[str, Any], ...]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"


class Failure(msgspec.Struct, frozen=True):
    """The error of a failed response."""

    code: str
    message: str


class Incomplete(msgspec.Struct, frozen=True):
    """The reason why a response is incomplete."""

    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, complete or not. It repeats the parameters of the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    conversation: ConversationName | None = None
    status: str
    background: bool = False
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: tuple[Output, ...] = ()
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None = None
    prompt_cache_key: str | None
    reasoning: Reasoning
    safety_identifier: str | None
    service_tier: str
    store: bool = False
    temperature: float
    # Raw: repeated byte for byte as the client wrote it.
    text: msgspec.Raw
    tool_choice: Any
    tools: tuple[dict[str, Any], ...]
    top_p: float
    truncation: str
    usage: Usage | None = None
    user: str | None
    metadata: dict[str, str]
    top_logprobs: int = 0


class ItemList(msgspec.Struct, frozen=True):
    """Answer of `/v1/responses/{id}/input_items`."""

    data: tuple[dict[str, Any], ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Deleted(msgspec.Struct, frozen=True):
    """Answer to a `DELETE` of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, frozen=True):
    """Answer of `/v1/responses/input_tokens`."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
