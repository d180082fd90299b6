"""OpenAI's files and batches: `/v1/files` and `/v1/batches`. Source: OpenAI's API reference, "Files" and "Batch"."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Metadata = dict[str, str]


class FileUpload(msgspec.Struct, frozen=True):
    """The form of an upload; `file` is its content, and `expires_after` is sent as fields of its own."""

    file: str
    purpose: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True):
    """A page of files."""

    data: tuple[File, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When files of results expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2_592_000)]


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(msgspec.Struct, frozen=True):
    """What is wrong with an input file."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(msgspec.Struct, frozen=True):
    """All that is."""

    data: tuple[BatchError, ...]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines by what became of them."""

    total: int
    completed: int
    failed: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True):
    """A page of batches."""

    data: tuple[Batch, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class InputLine(msgspec.Struct, frozen=True):
    """A line of an input file."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: msgspec.Raw


class LineResponse(msgspec.Struct, frozen=True):
    """The HTTP answer to a line."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Why a line has no answer."""

    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    """A line of an output file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None
