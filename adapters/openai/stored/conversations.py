"""Conversations: the routes of `/v1/conversations`, and what a response reads of a conversation and appends to it.

A conversation is an object whose entries are its items, in the form in which the API returns them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call, Reply
from adapters.body import UNREADABLE
from adapters.objects import (
    Append,
    Delete,
    DeleteEntry,
    Entry,
    Get,
    GetEntry,
    ListEntries,
    Page,
    Put,
    Steps,
)
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, too_long
from adapters.openai.inbound.decode import read_fields
from adapters.openai.responses.decode import INCLUDABLE, LOGPROBS
from adapters.openai.responses.items import read_message
from adapters.openai.responses.stored import CONVERSATION, entries_of, no_conversation, normalized
from adapters.openai.stored.pages import check_metadata, encode_page, read_span
from schemas.errors import BodyTooLarge, ObjectNotFound, UnsupportedFeature
from schemas.openai import conversations as wire
from schemas.openai.responses import ConversationName, Item

_ALWAYS_INCLUDED = ("message.input_image.image_url",)
_MOST_ITEMS = 20
"""Items that one request may add, as at OpenAI."""


def create(dialect: Dialect, call: Call, fields: Any, now: int) -> Steps[Reply]:
    """`POST /v1/conversations`."""
    given, _ = read_fields(dialect, fields, wire.ConversationRequest)
    id = f"conv_{call.id}"
    made = wire.Conversation(id=id, created_at=now, metadata=check_metadata(given.metadata))
    data = msgspec.json.encode(made)
    if not (yield Put(CONVERSATION, id, data, _entries(given.items or (), fields, call))):
        raise BodyTooLarge("The conversation is larger than this server stores.")
    return Reply(data)


def retrieve(call: Call) -> Steps[Reply]:
    """`GET /v1/conversations/{id}`."""
    return Reply((yield from _load(call)))


def update(dialect: Dialect, call: Call, fields: Any) -> Steps[Reply]:
    """`POST /v1/conversations/{id}`: replace its metadata."""
    given, _ = read_fields(dialect, fields, wire.MetadataRequest)
    known = msgspec.json.decode((yield from _load(call)), type=wire.Conversation)
    data = msgspec.json.encode(msgspec.structs.replace(known, metadata=check_metadata(given.metadata)))
    if not (yield Append(CONVERSATION, known.id, data=data)):
        raise no_conversation(known.id)
    return Reply(data)


def delete(call: Call) -> Steps[Reply]:
    """`DELETE /v1/conversations/{id}`, with its items."""
    id = call.path["id"]
    if not (yield Delete(CONVERSATION, id)):
        raise no_conversation(id)
    return Reply(msgspec.json.encode(wire.DeletedObject(id, "conversation.deleted")))


def create_items(dialect: Dialect, call: Call, fields: Any) -> Steps[Reply]:
    """`POST /v1/conversations/{id}/items`."""
    _included(call)
    given, _ = read_fields(dialect, fields, wire.ItemsRequest)
    if not given.items:
        raise empty("items")
    entries = _entries(given.items, fields, call)
    if not (yield Append(CONVERSATION, call.path["id"], entries)):
        raise no_conversation(call.path["id"])
    return encode_page(_shown(call, Page(entries)))


def list_items(call: Call) -> Steps[Reply]:
    """`GET /v1/conversations/{id}/items`: the newest item first, unless `order` is "asc"."""
    _included(call)
    page = yield ListEntries(CONVERSATION, call.path["id"], read_span(call.query, "desc"))
    if not isinstance(page, Page):
        raise no_conversation(call.path["id"])
    return encode_page(_shown(call, page))


def retrieve_item(call: Call) -> Steps[Reply]:
    """`GET /v1/conversations/{id}/items/{item}`."""
    _included(call)
    yield from _load(call)
    data = yield GetEntry(CONVERSATION, call.path["id"], call.path["item"])
    if not isinstance(data, bytes):
        raise _no_item(call)
    return Reply(_shown(call, Page((Entry(call.path["item"], data),))).entries[0].data)


def delete_item(call: Call) -> Steps[Reply]:
    """`DELETE /v1/conversations/{id}/items/{item}`, which answers with the conversation."""
    conversation = yield from _load(call)
    if not (yield DeleteEntry(CONVERSATION, call.path["id"], call.path["item"])):
        raise _no_item(call)
    return Reply(conversation)


class _Naming(msgspec.Struct, frozen=True):
    """The field of a body that names a conversation."""

    conversation: str | ConversationName | None = None


def named(body: bytes) -> tuple[str, str] | None:
    """The conversation that the body of a response names; None if it names none, or cannot be read."""
    if b'"conversation"' not in body:
        return None
    try:
        given = msgspec.json.decode(body, type=_Naming).conversation
    except UNREADABLE:  # `decode` refuses the body
        return None
    id = given.id if isinstance(given, ConversationName) else given
    return None if id is None else (CONVERSATION, id)


def _load(call: Call) -> Steps[bytes]:
    """The JSON of the conversation that the path names."""
    data = yield Get(CONVERSATION, call.path["id"])
    if not isinstance(data, bytes):
        raise no_conversation(call.path["id"])
    return data


def _included(call: Call) -> tuple[str, ...]:
    """What the query wants included in items.

    Raises:
        schemas.errors.UnsupportedFeature: items here never have it.
    """
    given = call.query.get("include[]") or call.query.get("include") or ""
    names = tuple(given.split(",")) if given else ()
    for name in names:
        if name not in (*INCLUDABLE, *_ALWAYS_INCLUDED):
            raise UnsupportedFeature(f"'{name}' cannot be included.", feature="include", param="include")
    return names


def _shown(call: Call, page: Page) -> Page:
    """The items of a page as the request wants them: log-probabilities only if it says so."""
    if LOGPROBS in _included(call):
        return page
    entries = tuple(
        Entry(entry.id, _without_logprobs(entry.data)) if b'"logprobs"' in entry.data else entry
        for entry in page.entries
    )
    return msgspec.structs.replace(page, entries=entries)


def _without_logprobs(item: bytes) -> bytes:
    fields = msgspec.json.decode(item)
    if isinstance(content := fields.get("content"), list):
        for part in content:
            if isinstance(part, dict) and part.get("logprobs"):
                part["logprobs"] = []
    return msgspec.json.encode(fields)


def _no_item(call: Call) -> ObjectNotFound:
    return ObjectNotFound(f"Item with id '{call.path['item']}' not found in conversation '{call.path['id']}'.")


def _entries(items: tuple[Item, ...], fields: Any, call: Call) -> tuple[Entry, ...]:
    """The items of a request as they are stored.

    Args:
        items: as they were read.
        fields: the body, whose items keep fields that the struct does not have.
        call: names new items.

    Raises:
        schemas.errors.InvalidRequest: there are too many, or no response could read one of them.
    """
    if len(items) > _MOST_ITEMS:
        raise too_long("items", _MOST_ITEMS, len(items))
    for place, item in enumerate(items):
        # Read as a response will read it: what is wrong with an item is the fault of the request that adds it.
        read_message(item, f"items[{place}]")
    return entries_of(normalized(item, f"{call.id}_in{place}") for place, item in enumerate(fields.get("items") or ()))
