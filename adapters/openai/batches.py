"""Files and batches in OpenAI's form: what clients send, what describes them, and the lines of both kinds of files."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from adapters.base import Call, Reply, Route
from adapters.batches import Batch, Line, NewBatch, Page, Range, Result, StoredFile
from adapters.body import UNREADABLE, convert, parse
from adapters.openai.inbound.checks import not_one_of, refused
from adapters.openai.stored.pages import check_metadata
from schemas.errors import InvalidRequest
from schemas.openai import batches as wire

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The routes that answer lines."""

INPUT, OUTPUT = "batch", "batch_output"
"""The purposes of files that are kept: those that batches are read from, and those with results."""

_WINDOW = "24h"
_FILES, _BATCHES = 10_000, 100
"""Entries of a page at most."""
_DEFAULT_BATCHES = 20
_UNASKED: Final = {
    "expired": wire.LineError(
        "batch_expired", "This request could not be executed before the completion window expired."
    ),
    "cancelled": wire.LineError("batch_cancelled", "This request was not executed: the batch was cancelled."),
}


def batch_routes(prefix: str) -> tuple[Route, ...]:
    """The routes of files and batches under the path `prefix`."""
    files, batches = f"{prefix}/files", f"{prefix}/batches"
    return (
        Route(
            "POST",
            files,
            "upload_file",
            "store",
            "Upload a file for a batch",
            body=wire.FileUpload,
            answer=wire.File,
            form=True,
        ),
        Route("GET", files, "files", "store", "List the files", answer=wire.FileList),
        Route("GET", f"{files}/{{id}}", "file", "store", "Describe a file", answer=wire.File),
        Route("DELETE", f"{files}/{{id}}", "delete_file", "store", "Delete a file", answer=wire.FileDeleted),
        Route("GET", f"{files}/{{id}}/content", "file_content", "store", "Download a file"),
        Route(
            "POST",
            batches,
            "create_batch",
            "store",
            "Have the requests of a file answered",
            body=wire.BatchRequest,
            answer=wire.Batch,
        ),
        Route("GET", batches, "batches", "store", "List the batches", answer=wire.BatchList),
        Route("GET", f"{batches}/{{id}}", "batch", "store", "Describe a batch", answer=wire.Batch),
        Route("POST", f"{batches}/{{id}}/cancel", "cancel_batch", "store", "Cancel a batch", answer=wire.Batch),
    )


class OpenAIBatches:
    """Batches, as `adapters.batches.BatchCodec`."""

    id_prefix = "batch_"
    separates_errors = True

    def read_batch(self, body: bytes) -> NewBatch:
        """The file and the endpoint that a client names.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule.
        """
        asked, _ = convert(parse(body), wire.BatchRequest)
        if asked.endpoint not in ENDPOINTS:
            raise not_one_of("endpoint", asked.endpoint, ENDPOINTS)
        if asked.completion_window != _WINDOW:
            raise not_one_of("completion_window", asked.completion_window, (_WINDOW,))
        if asked.metadata is not None:
            check_metadata(asked.metadata)
        kept = asked.output_expires_after.seconds if asked.output_expires_after is not None else None
        return NewBatch(
            endpoint=asked.endpoint, input_file=asked.input_file_id, metadata=asked.metadata, output_kept=kept
        )

    def read_line(self, line: bytes, endpoint: str) -> Line:
        """One line of an input file.

        Raises:
            schemas.errors.InvalidRequest: it is no request of the endpoint.
        """
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            raise InvalidRequest("This line is not a JSON object.", code="invalid_json_line") from None
        for name in ("custom_id", "method", "url", "body"):
            if name not in fields:
                text = f"Missing required parameter: '{name}'."
                raise InvalidRequest(text, param=name, code="missing_required_parameter")
        try:
            asked = msgspec.json.decode(line, type=wire.InputLine)
        except UNREADABLE as error:
            raise InvalidRequest(f"This line is invalid: {error}.", code="invalid_request") from None
        if asked.method != "POST":
            raise InvalidRequest("The method must be 'POST'.", param="method", code="invalid_method")
        if asked.url != endpoint:
            text = f"The URL provided for this request does not match the batch endpoint '{endpoint}'."
            raise InvalidRequest(text, param="url", code="mismatched_url")
        if not bytes(asked.body).lstrip().startswith(b"{"):
            raise InvalidRequest("The body must be a JSON object.", param="body", code="invalid_request")
        return Line(asked.custom_id, bytes(asked.body))

    def read_range(self, call: Call) -> Range:
        """The part of the list of batches that a query asks for.

        Raises:
            schemas.errors.InvalidRequest: `limit` is wrong.
        """
        return Range(limit=_limit(call, _DEFAULT_BATCHES, _BATCHES), after=call.query.get("after"))

    def encode_batch(self, batch: Batch, address: str) -> Reply:  # noqa: ARG002
        """The description of a batch."""
        return _json(_batch(batch))

    def encode_batches(self, page: Page[Batch], address: str) -> Reply:  # noqa: ARG002
        """A page of batches."""
        first, last = _ends(page)
        return _json(wire.BatchList(tuple(map(_batch, page.items)), page.has_more, first, last))

    def encode_deletion(self, batch: Batch) -> Reply:
        """Never called: batches of this protocol are not deleted."""
        return self.encode_batch(batch, "")

    def encode_result(self, batch: Batch, result: Result) -> bytes:
        """A line of an output file or of a file of errors."""
        response = error = None
        if result.unasked is not None:
            error = _UNASKED[result.unasked]
        else:
            response = wire.LineResponse(result.status, result.request_id, msgspec.Raw(result.body))
        id = f"batch_req_{batch.id.partition('_')[2]}_{result.number}"
        return msgspec.json.encode(wire.OutputLine(id, result.custom_id, response, error)) + b"\n"


class OpenAIFiles:
    """Files, as `adapters.batches.FileCodec`."""

    def check_purpose(self, purpose: str) -> None:
        """Check the purpose of an upload: only files for batches are kept.

        Raises:
            schemas.errors.InvalidRequest: it is another one.
        """
        if purpose != INPUT:
            text = f"Invalid value for 'purpose': '{purpose}'. Only files for batches are kept: send '{INPUT}'."
            raise refused("purpose", text)

    def read_expiry(self, anchor: str | None, seconds: str | None) -> int | None:
        """The seconds of `expires_after`.

        Raises:
            schemas.errors.InvalidRequest: the anchor or the number is wrong.
        """
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise not_one_of("expires_after[anchor]", anchor or "", ("created_at",))
        if not re.fullmatch(r"[0-9]{1,7}", seconds or "") or not 3600 <= int(seconds or "") <= 2_592_000:
            raise refused("expires_after[seconds]", "Invalid 'expires_after[seconds]': must be from 3600 to 2592000.")
        return int(seconds or "")

    def read_file_range(self, call: Call) -> Range:
        """The part of the list of files that a query asks for.

        Raises:
            schemas.errors.InvalidRequest: a parameter is wrong.
        """
        order = call.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise not_one_of("order", order, ("asc", "desc"))
        return Range(
            limit=_limit(call, _FILES, _FILES),
            after=call.query.get("after"),
            ascending=order == "asc",
            purpose=call.query.get("purpose"),
        )

    def encode_file(self, file: StoredFile) -> Reply:
        """The description of a file."""
        return _json(_file(file))

    def encode_files(self, page: Page[StoredFile]) -> Reply:
        """A page of files."""
        first, last = _ends(page)
        return _json(wire.FileList(tuple(map(_file, page.items)), page.has_more, first, last))

    def encode_file_deletion(self, id: str) -> Reply:
        """The answer to a deletion."""
        return _json(wire.FileDeleted(id))


def _file(file: StoredFile) -> wire.File:
    return wire.File(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created,
        expires_at=file.expires,
        filename=file.name,
        purpose=file.purpose,
    )


def _batch(batch: Batch) -> wire.Batch:
    problems = tuple(wire.BatchError(each.code, each.message, each.param, each.line) for each in batch.problems)
    at = batch.times.get
    return wire.Batch(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=wire.BatchErrors(problems) if problems else None,
        input_file_id=batch.input_file or "",
        status=batch.state,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        created_at=batch.created,
        in_progress_at=at("in_progress"),
        expires_at=batch.expires,
        finalizing_at=at("finalizing"),
        completed_at=at("completed"),
        failed_at=at("failed"),
        expired_at=at("expired"),
        cancelling_at=at("cancelling"),
        cancelled_at=at("cancelled"),
        request_counts=wire.RequestCounts(batch.total, batch.completed, batch.failed),
        metadata=batch.metadata,
    )


def _limit(call: Call, default: int, most: int) -> int:
    given = call.query.get("limit", str(default))
    # The pattern bounds the number before `int` reads it.
    if not re.fullmatch(r"[0-9]{1,5}", given) or not 1 <= int(given) <= most:
        raise refused("limit", f"Invalid 'limit': must be from 1 to {most}.")
    return int(given)


def _ends(page: Page[Any]) -> tuple[str | None, str | None]:
    return (page.items[0].id, page.items[-1].id) if page.items else (None, None)


def _json(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))
