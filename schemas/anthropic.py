"""Anthropic's Messages API on the wire: `/v1/messages` and `/v1/messages/count_tokens`.

Requests take `null` for what is not given; ranges are the dialect's. Unknown fields are kept by the reader.
Source: Anthropic API reference, version 2023-06-01.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Source(msgspec.Struct, frozen=True):
    """Where a picture is: base64 `data` with its `media_type`, or a `url`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct, frozen=True):
    """One piece of content, whatever its `type`."""

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


class Turn(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: str
    content: str | tuple[Block, ...]


class Tool(msgspec.Struct, frozen=True):
    """A tool. Only those of the client's own, `type` "custom" or none, can be run by anybody but Anthropic."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`auto`, `any` (one must be called), `tool` (that one must) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct, frozen=True):
    """Who asks."""

    user_id: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be counted."""

    model: str
    messages: tuple[Turn, ...]
    system: str | tuple[Block, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """A question."""

    max_tokens: int
    stop_sequences: tuple[str, ...] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None


class Count(msgspec.Struct, frozen=True):
    """The answer to a `CountRequest`."""

    input_tokens: int


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """What came before the answer; nobody here signs it."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw


class Usage(msgspec.Struct, frozen=True):
    """Tokens; those read from the cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[TextBlock | ThinkingBlock | ToolUseBlock, ...]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class Error(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error, whole or in a stream."""

    error: Error
    type: Literal["error"] = "error"


# --- what remotes send: read leniently ---------------------------------------------------------------------------


class RemoteUsage(msgspec.Struct, frozen=True):
    """A remote's counts, some of which come early and some late."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class RemoteMessage(msgspec.Struct, frozen=True):
    """A remote's answer, or the beginning of it."""

    model: str | None = None
    content: tuple[Block, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: RemoteUsage = RemoteUsage()


class RemoteDelta(msgspec.Struct, frozen=True):
    """What a block gained, or the message."""

    type: str | None = None
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class RemoteEvent(msgspec.Struct, frozen=True):
    """One event of a remote's stream."""

    type: str
    message: RemoteMessage | None = None
    index: int = 0
    content_block: Block | None = None
    delta: RemoteDelta | None = None
    usage: RemoteUsage | None = None
    error: Error | None = None
