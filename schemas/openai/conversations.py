"""Conversations of OpenAI's API on the wire: `/v1/conversations`.

Source: OpenAI's API reference (openai-openapi, CreateConversationBody and ConversationItemList).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.openai.responses import Item

Metadata = dict[str, str]


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/conversations`."""

    items: tuple[Item, ...] | None = None
    metadata: Metadata | None = None


class ItemsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/conversations/{id}/items`."""

    items: tuple[Item, ...]


class MetadataRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of requests that replace the metadata of an object."""

    metadata: Metadata | None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata


class DeletedObject(msgspec.Struct, frozen=True):
    """Answer to a `DELETE`; `object` names the kind."""

    id: str
    object: str
    deleted: bool = True


class ObjectList(msgspec.Struct, frozen=True):
    """A page of items, messages or chat completions."""

    data: tuple[msgspec.Raw, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"
