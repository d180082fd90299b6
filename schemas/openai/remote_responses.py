"""Answers of remotes of the Responses API. What a server may omit is optional, what it may add is left alone.

Items and events of types that are not known here pass through these structs, so that fields which other types use
otherwise are not decoded with them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.openai.remote import Count, RemoteToken

_NULL = msgspec.Raw(b"null")


class RemotePart(msgspec.Struct, frozen=True):
    """A part of a message, of reasoning or of a summary of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: tuple[RemoteToken, ...] | None = None


class RemoteItem(msgspec.Struct, frozen=True):
    """An item of the output. `content` and `summary` are lists of parts in the types that are read."""

    type: str = ""
    call_id: str | None = None
    name: str | None = None
    # Any: of other calls it is no text.
    arguments: Any = None
    content: msgspec.Raw = _NULL
    summary: msgspec.Raw = _NULL


class RemoteInputDetails(msgspec.Struct, frozen=True):
    """Details of the input's token count."""

    cached_tokens: Count | None = None


class RemoteOutputDetails(msgspec.Struct, frozen=True):
    """Details of the output's token count."""

    reasoning_tokens: Count | None = None


class RemoteResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: Count = 0
    output_tokens: Count | None = None
    input_tokens_details: RemoteInputDetails | None = None
    output_tokens_details: RemoteOutputDetails | None = None


class RemoteIncomplete(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: str | None = None


class RemoteResponse(msgspec.Struct, frozen=True):
    """A response, whole or as an event has it."""

    model: str | None = None
    status: str | None = None
    error: Any = None
    incomplete_details: RemoteIncomplete | None = None
    output: tuple[RemoteItem, ...] | None = None
    usage: RemoteResponseUsage | None = None


class RemoteEvent(msgspec.Struct, frozen=True):
    """One event of a stream. `error`, `code` and `message` are those of an error, in either form that servers have."""

    type: str = ""
    response: RemoteResponse | None = None
    item: RemoteItem | None = None
    output_index: int = 0
    summary_index: int | None = None
    # Any: a text in the types that are read.
    delta: Any = None
    logprobs: tuple[RemoteToken, ...] | None = None
    error: Any = None
    code: Any = None
    message: Any = None
    param: Any = None
