"""Requests of the Responses API that pass to a remote as they came, with all that nobody here knows.

The gateway stores responses and conversations itself: the remote is sent the whole conversation, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from adapters.openai.remote.encode_request import raw_fields
from adapters.openai.responses.decode import ENCRYPTED, OPERATION
from adapters.openai.responses.stored import Items, is_own
from adapters.openai.responses.summary import INTRODUCTION, read_summary
from schemas.ir import Generate
from schemas.origin import Origin, Relay

_KEPT_HERE = ("previous_response_id", "conversation", "background")
"""The fields that name what is stored here, or have it made here."""


def relays(request: Generate) -> bool:
    """Whether a remote of the API is sent the client's body, and the client its answer."""
    origin = request.origin
    return origin is not None and bool(origin.body) and origin.operation == OPERATION


def relayed_body(request: Generate) -> bytes:
    """The client's body, with the remote's name of the model and all of the conversation."""
    assert request.origin is not None
    fields = _fields(request.origin)
    # A server that stores nothing keeps no reasoning for the next turn: it gives it to whoever asks, encrypted.
    if _is_given(fields.get("reasoning")) and bytes(fields.get("store", b"null")) != b"false":
        included = msgspec.json.decode(fields.get("include", b"null")) or []
        fields["include"] = [*included, *((ENCRYPTED,) if ENCRYPTED not in included else ())]
    fields |= {"model": request.model, "store": False}
    if request.stream != (bytes(fields.get("stream", b"null")) == b"true"):
        fields["stream"] = request.stream
    return msgspec.json.encode(fields)


def counted_body(request: Relay) -> bytes:
    """The same of a request to count the tokens of a response's input."""
    return msgspec.json.encode(_fields(request.origin) | {"model": request.model})


def _fields(origin: Origin) -> dict[str, Any]:
    """The fields of a body, without those that name what is stored here, and with that instead."""
    fields: dict[str, Any] = {name: value for name, value in raw_fields(origin.body).items() if name not in _KEPT_HERE}
    given = msgspec.json.decode(origin.items or fields.get("input", b"null"))
    if isinstance(given, list):  # else it is a text, or the server has the prompt
        fields["input"] = list(_sent(given))
    return fields


def unsent_items(request: Generate) -> tuple[str, ...]:
    """The places of the reasoning in a client's body that a remote is not sent."""
    assert request.origin is not None
    # All reasoning is named by what reads the body, since no other remote is sent any.
    if not any(place.startswith("input[") for place in request.unknown):
        return ()
    given = msgspec.json.decode(request.origin.body)["input"]
    return tuple(f"input[{place}]" for place, item in enumerate(given) if _is_lost(item))


def _sent(items: Items) -> Iterator[dict[str, Any]]:
    """The items as a server takes them that has stored none of them."""
    for item in items:
        if _is_lost(item):
            continue
        is_summary = item.get("type") == "compaction"
        if is_summary and (summary := read_summary(item.get("encrypted_content"))) is not None:
            yield {"role": "assistant", "content": INTRODUCTION + summary}
        elif is_own(item.get("id")):
            yield {name: value for name, value in item.items() if name != "id"}
        else:
            yield item


def _is_lost(item: dict[str, Any]) -> bool:
    """Whether an item is another model's reasoning, or the name of reasoning that the server would have to store."""
    if item.get("type") != "reasoning":
        return False
    return is_own(item.get("id")) or not (item.get("encrypted_content") or item.get("content"))


def _is_given(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) != b"null"
