"""Stored responses: what is stored of a response, and the routes that retrieve, list and delete it.

A record holds its whole conversation, so that a response stays usable after the responses before it were deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from adapters.base import Call, Record, Reply
from adapters.objects import Entry
from adapters.openai.inbound.checks import not_one_of, refused
from schemas.errors import InvalidRequest, ObjectNotFound
from schemas.openai import responses as wire

CONVERSATION = "conversation"
"""The kind of the objects whose entries are the items of a conversation."""

REFERENCE = "item_reference"
"""The type of an input item that only names another item."""

Items = list[dict[str, Any]]
"""Items as JSON objects, each with an id."""

_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}
_OWN_ID = re.compile(r"[a-z]+_([^_]+)_(?:in)?[0-9]+")
"""An item's id that was made here: msg_<request>_<place>, and with `in` where it is one of the request's input."""
_PLACE = "item/"
"""Stands before an item's id in the name of the record of where it is."""
_RESPONSE = "resp_"
"""Stands before a request's id in the id of its response."""
UNFINISHED = ("queued", "in_progress")
"""The states of a response in the background that has not ended."""
_MAX_LIMIT, _DEFAULT_LIMIT = 100, 20


class StoredResponse(msgspec.Struct, frozen=True):
    """A record: the JSON of the response, and of the items before it in the conversation."""

    response: msgspec.Raw
    items: msgspec.Raw


class _Output(msgspec.Struct, frozen=True):
    output: Items | None = None


class _Status(msgspec.Struct, frozen=True):
    status: str | None = None


def entries_of(items: Iterable[dict[str, Any]]) -> tuple[Entry, ...]:
    """Items with ids as the entries of a conversation."""
    return tuple(Entry(item["id"], msgspec.json.encode(item)) for item in items)


def make_record(id: str, response: bytes, items: bytes) -> Record:
    """The record of a response."""
    return Record(id, msgspec.json.encode(StoredResponse(msgspec.Raw(response), msgspec.Raw(items))))


def conversation_items(call: Call, previous: str | None) -> Items:
    """The items of a conversation up to and including the response `previous`; none where it is None.

    Raises:
        schemas.errors.InvalidRequest: `previous` is not stored (any more), or is still being made.
    """
    if previous is None:
        return []
    stored = _load(call, previous)
    if stored is None:
        raise InvalidRequest(
            f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    status = msgspec.json.decode(stored.response, type=_Status).status
    if status in UNFINISHED:
        # Its output is not there yet: the conversation would lack the assistant's turn.
        raise refused(
            "previous_response_id",
            f"Previous response with id '{previous}' is still '{status}'. Retrieve it until it has ended.",
        )
    return _all_items(stored)


def whole_conversation(call: Call, before: Items, given: Any) -> bytes:
    """The JSON of the items `before` and of a request's `input` as its body has it, references resolved.

    Raises:
        schemas.errors.ObjectNotFound: a referenced item is not stored (any more).
    """
    added = [{"role": "user", "content": given}] if isinstance(given, str) else given
    resolved = [referenced_item(call, item.get("id") or "") if _is_reference(item) else item for item in added]
    return msgspec.json.encode(before + resolved)


def names_response(id: str) -> bool:
    """Whether an id is that of a response: other records are stored beside them."""
    return id.startswith(_RESPONSE)


def is_own(id: object) -> bool:
    """Whether an item's id was made here."""
    return isinstance(id, str) and bool(_response_of(id))


def places_of(response: str, items: Items) -> tuple[Record, ...]:
    """Records by which `referenced_item` finds the items of a response whose ids do not lead to it."""
    data = msgspec.json.encode(response)
    ids = [item["id"] for item in items if isinstance(item.get("id"), str)]
    return tuple(Record(_PLACE + id, data) for id in ids if _response_of(id) != response)


def no_conversation(id: str) -> ObjectNotFound:
    """The error for a conversation that the key does not have."""
    return ObjectNotFound(f"Conversation with id '{id}' not found.")


def referenced_item(call: Call, id: str) -> dict[str, Any]:
    """The item of a stored response that a request names by its id alone, as the AI SDK does.

    Raises:
        schemas.errors.ObjectNotFound: the item is not stored (any more).
    """
    # An id that was made here leads to its response; of all others there is a record of where they are.
    stored = _load(call, _response_of(id))
    if stored is None and call.records is not None and (place := call.records.get(_PLACE + id)) is not None:
        stored = _load(call, msgspec.json.decode(place, type=str))
    if stored is not None:
        for item in _all_items(stored):
            if item["id"] == id:
                return item
    message = f"Item with id '{id}' not found. Items are not kept where 'store' is false, nor for ever."
    raise ObjectNotFound(message, param="input")


def input_items(call: Call, given: Any) -> Items:
    """The items of a request's `input` as its body has it: references resolved, ids added, texts in the long form.

    Raises:
        schemas.errors.ObjectNotFound: a referenced item is not stored (any more).
    """
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [
        referenced_item(call, item.get("id") or "") if _is_reference(item) else normalized(item, f"{call.id}_in{place}")
        for place, item in enumerate(items)
    ]


def normalized(item: dict[str, Any], id: str) -> dict[str, Any]:
    """The item as it is stored: with type, id and status, and the text of a message as a list of content parts."""
    kind = item.get("type") or "message"
    fields = {"type": kind, "id": f"{_ID_PREFIXES.get(kind, 'item')}_{id}"}
    # Items of other types may have no status.
    fields |= {"status": "completed"} if kind in _ID_PREFIXES else {}
    # The client's own fields, an id among them, overwrite the defaults.
    fields |= {name: value for name, value in item.items() if value is not None}
    if kind == "message" and isinstance(fields.get("content"), str):
        text = {"type": "input_text", "text": fields["content"]}
        if fields.get("role") == "assistant":
            # Assistants' texts are outputs wherever they stand.
            text |= {"type": "output_text", "annotations": []}
        fields["content"] = [text]
    return fields


def list_items(call: Call) -> Reply:
    """The answer of `GET /v1/responses/{id}/input_items`: the newest item first, unless `order` is "asc".

    Raises:
        schemas.errors.RequestError: the response is not stored, or a query parameter is wrong.
    """
    items: Items = msgspec.json.decode(_stored(call).items)
    order = call.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise not_one_of("order", order, ("asc", "desc"))
    if order == "desc":
        items.reverse()
    limit = call.query.get("limit", str(_DEFAULT_LIMIT))
    # The pattern bounds the number before `int` reads it.
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= _MAX_LIMIT:
        raise refused("limit", f"Invalid 'limit': must be from 1 to {_MAX_LIMIT}.")
    ids = [item["id"] for item in items]
    # An unknown cursor is no error: the page begins at the first item.
    begin = ids.index(call.query["after"]) + 1 if call.query.get("after") in ids else 0
    page = items[begin : begin + int(limit)]
    answer = wire.ItemList(
        data=tuple(page),
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=begin + len(page) < len(items),
    )
    return Reply(msgspec.json.encode(answer))


def _response_of(id: str) -> str:
    """The id of the response that an item's id leads to, if it was made here; "": it was not."""
    own = _OWN_ID.fullmatch(id)
    return "" if own is None else _RESPONSE + own[1]


def _is_reference(item: dict[str, Any]) -> bool:
    return item.get("type") == REFERENCE


def _all_items(stored: StoredResponse) -> Items:
    """The items of the conversation and of the response itself."""
    items: Items = msgspec.json.decode(stored.items)
    return items + (msgspec.json.decode(stored.response, type=_Output).output or [])


def _load(call: Call, id: str) -> StoredResponse | None:
    data = call.records.get(id) if call.records is not None and names_response(id) else None
    return None if data is None else msgspec.json.decode(data, type=StoredResponse)


def _stored(call: Call) -> StoredResponse:
    """The response that the path names."""
    stored = _load(call, call.path["id"])
    if stored is None:
        raise not_found(call.path["id"])
    return stored


def not_found(id: str) -> ObjectNotFound:
    """The error for a response that the key does not have."""
    return ObjectNotFound(f"Response with id '{id}' not found.")
