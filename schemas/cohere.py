"""Cohere's API on the wire, version 2: the answers of `/v2/chat` and `/v2/embed`, whole and streamed.

Requests are written from the IR, and answers to `/v2/rerank` pass as they come. Fields that the IR has no place for,
such as citations, are left out. Source: Cohere's OpenAPI document (cohere-ai/cohere-developer-experience).
"""

from __future__ import annotations

from typing import Literal

import msgspec

InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]
"""What embeddings are for."""


class Tokens(msgspec.Struct, frozen=True):
    """Counts, which the API sends as floats."""

    input_tokens: float | None = None
    output_tokens: float | None = None


class Usage(msgspec.Struct, frozen=True):
    """`tokens` are those that the model read and wrote; `billed_units` are those that are paid for, often fewer."""

    tokens: Tokens | None = None
    billed_units: Tokens | None = None
    cached_tokens: float | None = None


class Function(msgspec.Struct, frozen=True):
    """What is called; `arguments` is JSON text, in a stream a piece of it."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str | None = None
    function: Function = Function()


# One struct for all kinds of blocks, not a union: the API adds kinds, and an unknown one must not fail the decoding.
class Block(msgspec.Struct, frozen=True):
    """A block of a message's content, in a stream a piece of it."""

    text: str | None = None
    thinking: str | None = None


class Message(msgspec.Struct, frozen=True):
    """The model's message. `tool_plan` is what it thinks before it calls tools."""

    content: tuple[Block, ...] | None = None
    tool_plan: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer."""

    finish_reason: str
    message: Message
    usage: Usage | None = None


class MessageDelta(msgspec.Struct, frozen=True):
    """What an event adds: at most one block, and one call. An empty list stands for nothing."""

    content: Block | tuple[Block, ...] | None = None
    tool_plan: str | None = None
    tool_calls: ToolCall | tuple[ToolCall, ...] | None = None


class Delta(msgspec.Struct, frozen=True):
    """The body of an event; the last three fields are those of `message-end`."""

    message: MessageDelta | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream. `index` is that of a block or of a call."""

    type: str
    index: int = 0
    delta: Delta | None = None


class Vectors(msgspec.Struct, frozen=True, rename={"floats": "float"}):
    """Embeddings by their type; others than floats are not asked for."""

    floats: tuple[tuple[float, ...], ...] | None = None


class EmbeddingsAnswer(msgspec.Struct, frozen=True):
    """The answer to a request for embeddings."""

    embeddings: Vectors
    meta: Usage | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of an error."""

    message: str | None = None
