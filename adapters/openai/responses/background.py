"""Stored responses as they are retrieved, cancelled and deleted while they may still be made in the background.

A response whose worker has ended without it is found by whoever asks for it next, and fails then. So does a response
whose end could not be stored, or whose run is gone.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from adapters.base import Call, Reply
from adapters.formats.sse import guard
from adapters.objects import RESPONSE, RUN, CloseRun, Delete, EndRun, FindRun, Follow, Get, Put, RunState, Steps
from adapters.openai.inbound.checks import refused
from adapters.openai.inbound.stream import STREAM_HEADERS, STREAM_TYPE
from adapters.openai.responses.stored import UNFINISHED, StoredResponse, names_response, not_found
from schemas.errors import InvalidRequest
from schemas.openai import responses as wire

_LOST = wire.Failure("server_error", "The server stopped while it generated this response. Ask again.")
_NOT_STORED = wire.Failure("server_error", "The server did not store the end of this response. Ask again.")


class _Fields(msgspec.Struct, frozen=True):
    """The fields of a stored response that show what may be done with it."""

    status: str | None = None
    background: bool = False


def retrieve(call: Call) -> Steps[Reply | Follow]:
    """`GET /v1/responses/{id}`, whole or the stream of its events behind `starting_after`."""
    id = call.path["id"]
    stored = yield from _load(id)
    state = None
    if _fields(stored).background:
        state = yield FindRun(id)
        if isinstance(state, RunState) and state.state == "lost":
            yield from end_lost(id)
            state = yield FindRun(id)
        if _fields(stored).status in UNFINISHED:
            stored = yield from _settled(id, state)
    if call.query.get("stream", "false") == "false":
        is_running = isinstance(state, RunState) and state.state == "running"
        return Reply(_in_progress(stored) if is_running else bytes(stored.response))
    if not (isinstance(state, RunState) and state.streams):
        message = "Only a response that was made with 'background' and 'stream' can be streamed again."
        raise refused("stream", message)
    after = call.query.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,9}", after):
        raise refused("starting_after", "Invalid 'starting_after': must be the sequence number of an event.")
    return Follow(id, int(after) + 1, STREAM_TYPE, STREAM_HEADERS)


def cancel(call: Call) -> Steps[Reply]:
    """`POST /v1/responses/{id}/cancel`; of a response that has ended, the response as it is."""
    id = call.path["id"]
    stored = yield from _load(id)
    if not _fields(stored).background:
        raise InvalidRequest("Cannot cancel a synchronous response.")
    if _fields(stored).status in UNFINISHED:
        yield from _end(id, "cancelled", None)
        stored = yield from _settled(id, (yield FindRun(id)))
    return Reply(bytes(stored.response))


def delete(call: Call) -> Steps[Reply]:
    """`DELETE /v1/responses/{id}`; one that is being made is stopped."""
    id = call.path["id"]
    stored = yield from _load(id)
    if _fields(stored).background:
        # Before the response: a worker stores nothing of an answer that is not its own any more.
        yield EndRun(id)
    was_there = yield Delete(RESPONSE, id)
    if _fields(stored).background:
        # After the response: a response without a run would fail, and be stored again.
        yield Delete(RUN, id)
    if not was_there:
        raise not_found(id)
    return Reply(msgspec.json.encode(wire.Deleted(id)))


def end_lost(id: str) -> Steps[None]:
    """End a response whose worker is gone, unless it has ended meanwhile."""
    yield from _end(id, "failed", _LOST)


def _end(id: str, status: str, failure: wire.Failure | None) -> Steps[None]:
    """End a response that runs or has lost its worker."""
    number = yield EndRun(id)
    if not isinstance(number, int):
        return  # it has ended meanwhile
    # Read after it was taken: nobody else writes it from here on.
    stored = yield from _load(id)
    response: dict[str, Any] = msgspec.json.decode(stored.response)
    if response["status"] in UNFINISHED:
        response |= {"status": status, "error": msgspec.to_builtins(failure)}
    # The API has no event for a response that was cancelled.
    ended = response["status"] if response["status"] in ("completed", "incomplete") else "failed"
    event = {"type": f"response.{ended}", "sequence_number": number, "response": response}
    data = b"event: response.%b\ndata: %b\n\n" % (ended.encode(), guard(msgspec.json.encode(event)))
    body = msgspec.Raw(msgspec.json.encode(response))
    yield CloseRun(id, msgspec.json.encode(msgspec.structs.replace(stored, response=body)), number, data)


def _settled(id: str, state: object) -> Steps[StoredResponse]:
    """The response of a run that was found in a state; a response that its run has not ended fails now."""
    # Read after the run was found: a response is stored before its run ends.
    stored = yield from _load(id)
    if isinstance(state, RunState) and state.state in ("ended", "cut") and _fields(stored).status in UNFINISHED:
        response: dict[str, Any] = msgspec.json.decode(stored.response)
        response |= {"status": "failed", "error": msgspec.to_builtins(_NOT_STORED)}
        stored = msgspec.structs.replace(stored, response=msgspec.Raw(msgspec.json.encode(response)))
        yield Put(RESPONSE, id, msgspec.json.encode(stored))
    return stored


def _in_progress(stored: StoredResponse) -> bytes:
    """The queued response that was stored, in progress: its run alone has this, so that it cannot overwrite an end."""
    response: dict[str, Any] = msgspec.json.decode(stored.response)
    if response["status"] == "queued":
        response["status"] = "in_progress"
    return msgspec.json.encode(response)


def _load(id: str) -> Steps[StoredResponse]:
    data = (yield Get(RESPONSE, id)) if names_response(id) else None
    if not isinstance(data, bytes):
        raise not_found(id)
    return msgspec.json.decode(data, type=StoredResponse)


def _fields(stored: StoredResponse) -> _Fields:
    return msgspec.json.decode(stored.response, type=_Fields)
