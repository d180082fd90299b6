"""Batches of requests, and the files that they are read from and answered into: what protocols have in common.

A batch is a list of lines. Each line is the body of a request with a name of the client's (`custom_id`), and is
answered as that request would be. Protocols differ in how a batch is made, and in how its results are written.
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from adapters.base import Call, Reply

T = TypeVar("T")

State = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
"""OpenAI's words. `failed`: the input was refused, and no line was asked."""

OPEN: frozenset[State] = frozenset(("validating", "in_progress", "finalizing", "cancelling"))
"""The states of a batch that has not ended."""

Unasked = Literal["expired", "cancelled"]
"""Why a line has no answer."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file. Times are Unix seconds; `expires` None: never."""

    id: str
    name: str
    purpose: str
    bytes: int
    created: int
    expires: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """Why the input of a batch is refused; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Line(msgspec.Struct, frozen=True):
    """One line: the client's name for it, and the body of its request."""

    custom_id: str
    body: bytes


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for.

    Attributes:
        endpoint: the path of the route that answers the lines.
        input_file: the id of the file with the lines; None: they are in `lines`.
        lines: of the request itself.
        metadata: the client's own; None: it has given none.
        output_kept: seconds that the files of results are kept; None: as long as the server keeps files.
    """

    endpoint: str
    input_file: str | None = None
    lines: tuple[Line, ...] = ()
    metadata: dict[str, str] | None = None
    output_kept: int | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix seconds.

    Attributes:
        protocol: of the client.
        endpoint: the path of the route that answers the lines, as the client named it.
        prefix: of the mount that the batch was made below; "": of none.
        port: that the batch was made at; None: a Unix socket.
        created, expires: when it was made, and when lines that are not answered by then are given up.
        times: when it came to each of its states.
        output_file: the results; where a protocol separates them, without those that are errors.
        error_file: the others.
        problems: why it is `failed`.
        total: lines; 0 while they are being read.
        completed, failed: lines that were answered, and those that were answered by an error.
    """

    id: str
    protocol: str
    endpoint: str
    # Batches that an older version made have neither.
    prefix: str = ""
    port: int | None = None
    state: State
    created: int
    expires: int
    times: dict[str, int] = {}
    input_file: str | None = None
    output_file: str | None = None
    error_file: str | None = None
    output_kept: int | None = None
    metadata: dict[str, str] | None = None
    problems: tuple[Problem, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0


class Result(msgspec.Struct, frozen=True):
    """What became of a line: the HTTP answer that its request would have had, or why it was not asked."""

    number: int
    custom_id: str
    status: int = 0
    request_id: str = ""
    body: bytes = b""
    unasked: Unasked | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it is an answer, and no error."""
        return 200 <= self.status < 300


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list is asked for: the entries after or before one, the newest first unless `ascending`."""

    limit: int
    after: str | None = None
    before: str | None = None
    ascending: bool = False
    purpose: str | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list; `has_more` in the direction of the query."""

    items: tuple[T, ...]
    has_more: bool


class BatchCodec(Protocol):
    """Reads and writes one protocol's batches.

    Attributes:
        id_prefix: how ids of batches begin.
        separates_errors: whether results that are errors are in a file of their own.
    """

    id_prefix: str
    separates_errors: bool

    def read_batch(self, body: bytes) -> NewBatch:
        """What a client asks for.

        Raises:
            schemas.errors.RequestError: the body cannot be read or breaks a rule.
        """
        ...

    def read_line(self, line: bytes, endpoint: str) -> Line:
        """One line of an input file.

        Raises:
            schemas.errors.InvalidRequest: it is no request of the endpoint; `code` and `param` say what is wrong.
        """
        ...

    def read_range(self, call: Call) -> Range:
        """Which part of a list a query asks for.

        Raises:
            schemas.errors.InvalidRequest: a parameter is wrong.
        """
        ...

    def encode_batch(self, batch: Batch, address: str) -> Reply:
        """The description of a batch; `address` is the URL of the batches."""
        ...

    def encode_batches(self, page: Page[Batch], address: str) -> Reply:
        """A list of batches."""
        ...

    def encode_deletion(self, batch: Batch) -> Reply:
        """The answer to the deletion of a batch."""
        ...

    def encode_result(self, batch: Batch, result: Result) -> bytes:
        """The line of a result, with its line end."""
        ...


@runtime_checkable
class HasBatches(Protocol):
    """A server codec whose protocol has batches."""

    batches: BatchCodec


class FileCodec(Protocol):
    """Reads and writes one protocol's files."""

    def check_purpose(self, purpose: str) -> None:
        """Check what a file is for.

        Raises:
            schemas.errors.InvalidRequest: files for it are not kept.
        """
        ...

    def read_expiry(self, anchor: str | None, seconds: str | None) -> int | None:
        """How many seconds after its creation a file shall expire.

        Raises:
            schemas.errors.InvalidRequest: the values are wrong.
        """
        ...

    def read_file_range(self, call: Call) -> Range:
        """As `BatchCodec.read_range`."""
        ...

    def encode_file(self, file: StoredFile) -> Reply:
        """The description of a file."""
        ...

    def encode_files(self, page: Page[StoredFile]) -> Reply:
        """A list of files."""
        ...

    def encode_file_deletion(self, id: str) -> Reply:
        """The answer to the deletion of a file."""
        ...


@runtime_checkable
class HasFiles(Protocol):
    """A server codec whose protocol has files."""

    files: FileCodec
