"""Message batches: what clients send, what describes a batch, and the lines of its results.

Source: Anthropic's API reference, "Message Batches".
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Final

import msgspec

from adapters.anthropic.relay import refuse
from adapters.base import Call, Reply, Route
from adapters.batches import OPEN, Batch, Line, NewBatch, Page, Range, Result, Unasked
from adapters.body import UNREADABLE, misfit_of
from schemas import anthropic as wire
from schemas.errors import InternalError, InvalidRequest, MalformedBody

ENDPOINT = "/v1/messages"
"""The route that answers the requests of a batch."""

_PATH = "/v1/messages/batches"
_MAX_LIMIT, _DEFAULT_LIMIT = 1000, 20
_WORDS: Final[dict[Unasked, wire.BatchAnswer]] = {
    "expired": wire.BatchAnswer("expired"),
    "cancelled": wire.BatchAnswer("canceled"),
}

BATCH_ROUTES = (
    Route(
        "POST",
        _PATH,
        "create_batch",
        "store",
        "Have many conversations answered",
        body=wire.BatchRequest,
        answer=wire.MessageBatch,
    ),
    Route("GET", _PATH, "batches", "store", "List the batches", answer=wire.MessageBatchList),
    Route("GET", f"{_PATH}/{{id}}", "batch", "store", "Describe a batch", answer=wire.MessageBatch),
    Route("DELETE", f"{_PATH}/{{id}}", "delete_batch", "store", "Delete a batch", answer=wire.MessageBatchDeleted),
    Route("POST", f"{_PATH}/{{id}}/cancel", "cancel_batch", "store", "Cancel a batch", answer=wire.MessageBatch),
    Route("GET", f"{_PATH}/{{id}}/results", "batch_results", "store", "Download the results of a batch"),
)


class AnthropicBatches:
    """Message batches, as `adapters.batches.BatchCodec`."""

    id_prefix = "msgbatch_"
    separates_errors = False

    def read_batch(self, body: bytes) -> NewBatch:
        """The conversations that a client sends.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule.
        """
        try:
            asked = msgspec.json.decode(body, type=wire.BatchRequest)
        except msgspec.ValidationError as error:
            raise refuse(misfit_of(str(error), wire.BatchRequest)) from None
        except UNREADABLE as error:
            raise MalformedBody(f"The request body is not valid JSON: {error}") from None
        names = Counter(each.custom_id for each in asked.requests)
        if len(names) < len(asked.requests):
            twice = names.most_common(1)[0][0]
            raise InvalidRequest(f"requests: the custom_id '{twice}' is given more than once.", param="requests")
        lines = tuple(Line(each.custom_id, bytes(each.params)) for each in asked.requests)
        return NewBatch(endpoint=ENDPOINT, lines=lines)

    def read_line(self, line: bytes, endpoint: str) -> Line:  # noqa: ARG002
        """Never called: the protocol has no input files."""
        raise InternalError

    def read_range(self, call: Call) -> Range:
        """The part of the list that a query asks for.

        Raises:
            schemas.errors.InvalidRequest: `limit` is wrong.
        """
        given = call.query.get("limit", str(_DEFAULT_LIMIT))
        # The pattern bounds the number before `int` reads it.
        if not re.fullmatch(r"[0-9]{1,4}", given) or not 1 <= int(given) <= _MAX_LIMIT:
            raise InvalidRequest(f"limit: must be an integer from 1 to {_MAX_LIMIT}, got '{given}'.", param="limit")
        return Range(limit=int(given), after=call.query.get("after_id"), before=call.query.get("before_id"))

    def encode_batch(self, batch: Batch, address: str) -> Reply:
        """The description of a batch."""
        return Reply(msgspec.json.encode(_batch(batch, address)))

    def encode_batches(self, page: Page[Batch], address: str) -> Reply:
        """A page of batches."""
        first, last = (page.items[0].id, page.items[-1].id) if page.items else (None, None)
        shown = tuple(_batch(batch, address) for batch in page.items)
        return Reply(msgspec.json.encode(wire.MessageBatchList(shown, page.has_more, first, last)))

    def encode_deletion(self, batch: Batch) -> Reply:
        """The answer to a deletion."""
        return Reply(msgspec.json.encode(wire.MessageBatchDeleted(batch.id)))

    def encode_result(self, batch: Batch, result: Result) -> bytes:  # noqa: ARG002
        """A line of the results."""
        body = msgspec.Raw(result.body)
        if result.unasked is not None:
            answer = _WORDS[result.unasked]
        elif result.succeeded:
            answer = wire.BatchAnswer("succeeded", message=body)
        else:
            answer = wire.BatchAnswer("errored", error=body)
        return msgspec.json.encode(wire.BatchResult(result.custom_id, answer)) + b"\n"


def _batch(batch: Batch, address: str) -> wire.MessageBatch:
    ended = batch.state not in OPEN
    left = batch.total - batch.completed - batch.failed
    cancelled, expired = (left if batch.state == state else 0 for state in ("cancelled", "expired"))
    counts = (
        wire.BatchCounts(0, batch.completed, batch.failed, cancelled, expired)
        if ended
        else wire.BatchCounts(batch.total, 0, 0, 0, 0)
    )
    return wire.MessageBatch(
        id=batch.id,
        processing_status="ended" if ended else "canceling" if "cancelling" in batch.times else "in_progress",
        request_counts=counts,
        ended_at=_time(batch.times.get(batch.state)) if ended else None,
        created_at=_time(batch.created) or "",
        expires_at=_time(batch.expires) or "",
        cancel_initiated_at=_time(batch.times.get("cancelling")),
        results_url=f"{address}/{batch.id}/results" if ended and batch.output_file is not None else None,
    )


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
