"""Stored chat completions (`store: true`): what is kept of a chat, and the routes that list, read and change it.

A chat completion is an object whose data is the answer with the request's metadata, and whose entries are the messages
that were sent. Its id is the one that the client got, be it a remote's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adapters.base import Call, Record, Reply
from adapters.fold import Fold
from adapters.objects import Append, Delete, Entry, Get, ListEntries, ListObjects, Page, Span, Steps
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import encode_answer
from adapters.openai.inbound.chat_stream import ChatStreamWriter
from adapters.openai.inbound.decode import read_fields
from adapters.openai.inbound.stream import ErrorEncoder
from adapters.openai.stored.pages import check_metadata, encode_page, read_span
from schemas.errors import InvalidRequest, ObjectNotFound
from schemas.ir import Events, Generate, Relayed, Usage
from schemas.openai.conversations import DeletedObject, Metadata, MetadataRequest

KIND = "chat.completion"
"""The kind of these objects."""

_AT_ONCE = 100
_FILTER = "metadata["


class _Stored(msgspec.Struct, frozen=True):
    """The fields of a body or of a stored object that are read again."""

    id: str = ""
    model: str = ""
    metadata: Metadata | None = None
    messages: tuple[dict[str, Any], ...] = ()


def record_of(request: Generate, body: bytes) -> Record:
    """What is kept of an answered chat; `body` is the JSON of the whole answer."""
    asked = msgspec.json.decode(request.stored_items or b"{}", type=_Stored)
    answer: dict[str, Any] = msgspec.json.decode(body)
    id = str(answer.get("id") or request.id)
    entries = tuple(_message(f"{id}-{place}", message) for place, message in enumerate(asked.messages))
    return Record(id, msgspec.json.encode(answer | {"metadata": asked.metadata or {}}), KIND, entries)


class StoredChatWriter(ChatStreamWriter):
    """Writer of one streamed chat that is stored at its end."""

    def __init__(self, dialect: Dialect, request: Generate, created: int, encode_error: ErrorEncoder) -> None:
        super().__init__(dialect, request, created, encode_error)
        self._fold = Fold()
        self.record: Record | None = None

    def feed(self, events: Events) -> bytes:
        """The chunks for a batch of events."""
        self._fold.feed(events)
        for event in events:
            if isinstance(event, Relayed) and not event.framed:  # a run of chunks follows one with the same id
                # Chunks that a remote wrote have an id of the remote, which the client knows the chat by.
                self._id = msgspec.json.decode(event.data, type=_Stored).id or self._id
        data = super().feed(events)
        if isinstance(events[-1], Usage):
            answer = msgspec.structs.replace(self._fold.completion(), relayed=None)
            body: dict[str, Any] = msgspec.json.decode(
                encode_answer(self._dialect, self._request, answer, self._created).body
            )
            self.record = record_of(self._request, msgspec.json.encode(body | {"id": self._id}))
        return data


def list_chats(call: Call) -> Steps[Reply]:
    """`GET /v1/chat/completions`: the oldest first, of a model and with metadata if the query names them."""
    asked = read_span(call.query, "asc")
    wanted = {
        name.removeprefix(_FILTER).removesuffix("]"): value
        for name, value in call.query.items()
        if name.startswith(_FILTER)
    }
    found: list[Entry] = []
    span = Span(_AT_ONCE, asked.after, asked.newest_first)
    while True:
        page = yield ListObjects(KIND, span)
        assert isinstance(page, Page)
        found += [entry for entry in page.entries if _matches(entry.data, call.query.get("model"), wanted)]
        if len(found) > asked.limit or not page.more:
            return encode_page(Page(tuple(found[: asked.limit]), len(found) > asked.limit))
        span = Span(_AT_ONCE, page.entries[-1].id, asked.newest_first)


def retrieve(call: Call) -> Steps[Reply]:
    """`GET /v1/chat/completions/{id}`."""
    return Reply((yield from _load(call)))


def update(dialect: Dialect, call: Call, fields: Any) -> Steps[Reply]:
    """`POST /v1/chat/completions/{id}`: replace the metadata."""
    given, _ = read_fields(dialect, fields, MetadataRequest)
    metadata = check_metadata(given.metadata)
    known: dict[str, Any] = msgspec.json.decode((yield from _load(call)))
    data = msgspec.json.encode(known | {"metadata": metadata})
    if not (yield Append(KIND, call.path["id"], data=data)):
        raise _not_found(call)
    return Reply(data)


def delete(call: Call) -> Steps[Reply]:
    """`DELETE /v1/chat/completions/{id}`."""
    if not (yield Delete(KIND, call.path["id"])):
        raise _not_found(call)
    return Reply(msgspec.json.encode(DeletedObject(call.path["id"], "chat.completion.deleted")))


def list_messages(call: Call) -> Steps[Reply]:
    """`GET /v1/chat/completions/{id}/messages`: those that were sent, the first one first."""
    page = yield ListEntries(KIND, call.path["id"], read_span(call.query, "asc"))
    if not isinstance(page, Page):
        raise _not_found(call)
    return encode_page(page)


def checked(request: Generate, metadata: Mapping[str, Any] | None) -> Generate:
    """The same request, whose metadata can be stored if it is to be.

    Raises:
        schemas.errors.InvalidRequest: a value is no string, or there is too much.
    """
    if request.stored_items is None:
        return request
    for key, value in (metadata or {}).items():
        if not isinstance(value, str):
            message = f"Invalid type for 'metadata.{key[:64]}': expected a string: the chat is to be stored."
            raise InvalidRequest(message, param=f"metadata.{key[:64]}", code="invalid_type")
    check_metadata(dict(metadata or {}))
    return request


def _message(id: str, message: dict[str, Any]) -> Entry:
    """A message as it is listed: with an id, and with its text or its parts."""
    content = message.get("content")
    parts = {"content": None, "content_parts": content} if isinstance(content, list) else {"content_parts": None}
    return Entry(id, msgspec.json.encode({"content": None} | message | parts | {"id": id}))


def _matches(data: bytes, model: str | None, wanted: Metadata) -> bool:
    stored = msgspec.json.decode(data, type=_Stored)
    metadata = stored.metadata or {}
    return model in (None, stored.model) and all(metadata.get(key) == value for key, value in wanted.items())


def _load(call: Call) -> Steps[bytes]:
    data = yield Get(KIND, call.path["id"])
    if not isinstance(data, bytes):
        raise _not_found(call)
    return data


def _not_found(call: Call) -> ObjectNotFound:
    return ObjectNotFound(f"Chat completion with id '{call.path['id']}' not found.")
