"""Responses that may be asked for again, and gone on from: what is kept of one, and the routes that tell it.

A record is whole: it holds the conversation up to its response, so that one that was forgotten takes none with it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from adapters.base import Call, Record, Reply
from adapters.openai.inbound.checks import not_one_of, refused
from schemas import responses as wire
from schemas.errors import InvalidRequest, RouteNotFound, UnsupportedFeature

REFERENCE = "item_reference"
"""The type of an item that only names another one."""

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_MOST, _USUAL = 100, 20


class Stored(msgspec.Struct, frozen=True):
    """A record: the response's JSON, and the items that it answers."""

    response: msgspec.Raw
    items: msgspec.Raw


class _Answered(msgspec.Struct, frozen=True):
    output: list[dict[str, Any]] = []


def record(id: str, response: bytes, items: bytes) -> Record:
    """What is kept of a response."""
    return Record(id, msgspec.json.encode(Stored(msgspec.Raw(response), msgspec.Raw(items))))


def conversation(call: Call, previous: str | None) -> list[dict[str, Any]]:
    """The items of a conversation up to and with the response `previous`.

    Raises:
        schemas.errors.InvalidRequest: it is not known here (any more).
    """
    if previous is None:
        return []
    found = _find(call, previous)
    if found is None:
        raise InvalidRequest(
            f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    output = msgspec.json.decode(found.response, type=_Answered).output
    items: list[dict[str, Any]] = msgspec.json.decode(found.items)
    return items + output


def referred(call: Call, id: str) -> dict[str, Any]:
    """The item of a stored response that another request names by its id alone, as the AI SDK does.

    Raises:
        schemas.errors.RouteNotFound: it is not known here (any more).
    """
    request_id = id.partition("_")[2].rpartition("_")[0]  # every item's id holds that of the request
    found = _find(call, f"resp_{request_id}")
    if found is not None:
        items: list[dict[str, Any]] = msgspec.json.decode(found.items)
        for item in items + msgspec.json.decode(found.response, type=_Answered).output:
            if item["id"] == id:
                return item
    message = f"Item with id '{id}' not found. Items are not kept where 'store' is false, nor for ever."
    raise RouteNotFound(message, param="input")


def own_items(call: Call, given: Any) -> list[dict[str, Any]]:
    """The items of a request's `input`, as its body has them, each with an id and in its long form."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [
        referred(call, item.get("id") or "") if item.get("type") == REFERENCE else _long(item, f"{call.id}_in{place}")
        for place, item in enumerate(items)
    ]


def _long(item: dict[str, Any], id: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    said = {"type": kind, "id": f"{_PREFIXES.get(kind, 'item')}_{id}", "status": "completed"}
    said |= {name: value for name, value in item.items() if value is not None}
    if kind == "message" and isinstance(said.get("content"), str):
        text = {"type": "input_text", "text": said["content"]}
        if said.get("role") == "assistant":
            text |= {"type": "output_text", "annotations": []}
        said["content"] = [text]
    return said


def retrieve(call: Call) -> Reply:
    """The answer of `GET /v1/responses/{id}`.

    Raises:
        schemas.errors.RequestError: it is not known here, or asked for as a stream.
    """
    if call.query.get("stream", "false") != "false":
        message = "The 'stream' parameter is not supported: a response is told again whole."
        raise UnsupportedFeature(message, feature="stream", param="stream")
    return Reply(bytes(_found(call).response))


def delete(call: Call) -> Reply:
    """The answer of `DELETE /v1/responses/{id}`.

    Raises:
        schemas.errors.RouteNotFound: it is not known here.
    """
    id = call.path["id"]
    if call.records is None or not call.records.delete(id):
        raise _unknown(id)
    return Reply(msgspec.json.encode(wire.Deleted(id)))


def cancel(call: Call) -> Reply:
    """The answer of `POST /v1/responses/{id}/cancel`: none can be.

    Raises:
        schemas.errors.RequestError: it has ended, or is not known here.
    """
    _found(call)
    raise InvalidRequest("Cannot cancel a synchronous response.")


def list_items(call: Call) -> Reply:
    """The answer of `GET /v1/responses/{id}/input_items`, the newest first unless told otherwise.

    Raises:
        schemas.errors.RequestError: it is not known here, or a parameter is wrong.
    """
    items: list[dict[str, Any]] = msgspec.json.decode(_found(call).items)
    order = call.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise not_one_of("order", order, ("asc", "desc"))
    if order == "desc":
        items.reverse()
    limit = call.query.get("limit", str(_USUAL))
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= _MOST:
        raise refused("limit", f"Invalid 'limit': must be from 1 to {_MOST}.")
    ids = [item["id"] for item in items]
    begin = ids.index(call.query["after"]) + 1 if call.query.get("after") in ids else 0
    shown = items[begin : begin + int(limit)]
    page = wire.ItemList(
        data=tuple(shown),
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=begin + len(shown) < len(items),
    )
    return Reply(msgspec.json.encode(page))


def _find(call: Call, id: str) -> Stored | None:
    data = call.records.get(id) if call.records is not None else None
    return None if data is None else msgspec.json.decode(data, type=Stored)


def _found(call: Call) -> Stored:
    found = _find(call, call.path["id"])
    if found is None:
        raise _unknown(call.path["id"])
    return found


def _unknown(id: str) -> RouteNotFound:
    return RouteNotFound(f"Response with id '{id}' not found.")
