"""Anthropic's Messages API on the wire: `/v1/messages` and `/v1/messages/count_tokens`.

In requests null means absent. The dialect checks ranges, and the decoder keeps unknown fields.
Source: Anthropic API reference, version 2023-06-01.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from schemas.openai.extra_content import ExtraContent


class Source(msgspec.Struct, frozen=True):
    """The source of an image: base64 `data` with its `media_type`, or a `url`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


# One struct for all types, not a tagged union: the API adds types of blocks, and an unknown tag would fail the whole
# decoding. The decoder matches on `type` and refuses what it does not know, by its place in the body.
class Block(msgspec.Struct, frozen=True):
    """One content block of any `type`."""

    type: str
    text: str | None = None
    source: Source | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | tuple[Block, ...] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    # Hints, and fields of blocks that an answer had and that come back with the conversation.
    cache_control: Any = None
    citations: Any = None
    caller: Any = None
    data: Any = None
    extra_content: ExtraContent | None = None  # of a call that Google signed, as in OpenAI's chats


class Turn(msgspec.Struct, frozen=True):
    """One message of the conversation."""

    role: str
    content: str | tuple[Block, ...]


class Tool(msgspec.Struct, frozen=True):
    """A tool. `type` "custom" or None is one of the client's own; all others run at Anthropic only."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: Any = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`auto`, `any` (one tool must be called), `tool` (the named one must be called) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct, frozen=True):
    """Data about the client."""

    user_id: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The form of the answer: `json_schema` and the schema."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    """Options of the answer; `effort` is how much a model may think and write."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/messages/count_tokens`."""

    model: str
    messages: tuple[Turn, ...]
    system: str | tuple[Block, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    # The field's name while it was a beta; present SDKs send it, too.
    output_format: OutputFormat | None = None
    # A hint: where the prompt's cache should end.
    cache_control: Any = None
    # For servers of the same dialect alone, hence of any type.
    mcp_servers: Any = None
    container: Any = None
    context_management: Any = None
    inference_geo: Any = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """Body of `/v1/messages`."""

    # Required: the protocol has no default.
    max_tokens: int
    stop_sequences: tuple[str, ...] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None


class Count(msgspec.Struct, frozen=True):
    """Answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A block of text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """A block of reasoning, without a signature."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A tool call; `input` is a JSON object. `extra_content`, no field of Anthropic's, holds Google's signature."""

    id: str
    name: str
    # Raw, so that the model's JSON is not decoded and encoded again.
    input: msgspec.Raw
    extra_content: ExtraContent | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct, frozen=True):
    """Token counts; `input_tokens` excludes those read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

    # `message_start` has the same object, with empty content and a null `stop_reason`.

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[TextBlock | ThinkingBlock | ToolUseBlock, ...]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class Error(msgspec.Struct, frozen=True):
    """The type and message of an error."""

    type: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error, as a body or in a stream."""

    error: Error
    type: Literal["error"] = "error"


# --- answers of remotes: every field is optional ------------------------------------------------------------------


class RemoteUsage(msgspec.Struct, frozen=True):
    """A remote's token counts; the first event of a stream has some, the last one others."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


# Any, where types of blocks give a field different forms: one that is unknown here must not fail the decoding.
class RemoteBlock(msgspec.Struct, frozen=True):
    """One content block of any `type` in a remote's answer."""

    type: str
    text: Any = None
    thinking: Any = None
    id: Any = None
    name: Any = None
    input: Any = None


class RemoteMessage(msgspec.Struct, frozen=True):
    """A remote's answer, or in a stream the start of it."""

    model: str | None = None
    content: tuple[RemoteBlock, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: RemoteUsage = RemoteUsage()


class RemoteDelta(msgspec.Struct, frozen=True):
    """What a content block or the message gained."""

    type: str | None = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class EventType(msgspec.Struct, frozen=True):
    """The type of an event that is relayed."""

    type: str


class RemoteEvent(msgspec.Struct, frozen=True):
    """One event of a remote's stream."""

    type: str
    message: RemoteMessage | None = None
    index: int = 0
    content_block: RemoteBlock | None = None
    delta: RemoteDelta | None = None
    usage: RemoteUsage | None = None
    error: Error | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One served model. `created_at` is a time by RFC 3339."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"


class ModelList(msgspec.Struct, frozen=True):
    """One page of models; `has_more` in the direction of the query."""

    data: tuple[Model, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None


# --- message batches ----------------------------------------------------------------------------------------------


class BatchLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a batch; `params` is the body of a request for a message."""

    custom_id: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: msgspec.Raw


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a batch."""

    requests: Annotated[tuple[BatchLine, ...], msgspec.Meta(min_length=1)]


class BatchCounts(msgspec.Struct, frozen=True):
    """Requests of a batch by what became of them; all but `processing` are 0 until it has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are those of RFC 3339."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: BatchCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: str | None = None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchList(msgspec.Struct, frozen=True):
    """One page of batches; `has_more` in the direction of the query."""

    data: tuple[MessageBatch, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeleted(msgspec.Struct, frozen=True):
    """The answer to a deletion."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class BatchAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a request: `message` if it succeeded, `error` if it errored."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """A line of the results."""

    custom_id: str
    result: BatchAnswer
