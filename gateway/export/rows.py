"""One row per request, for analyses elsewhere: how rows are written by workers, and read again.

Columns begin with those of Databricks' inference tables. Strategy: a request's path only appends a struct to a list; a
thread encodes and writes what has gathered, twice a second. More rows than fit into the list are lost, and counted.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog

from gateway.config import Export
from gateway.storage.row_files import SUFFIX, RowFiles

log = structlog.get_logger()

_INTERVAL = 0.5
"""Seconds between two writes: what a killed worker may lose."""
_MOST_WAITING = 10_000
"""Rows that wait for the next write; more are lost."""


class Row(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        databricks_request_id: the answer's `x-request-id`.
        client_request_id: as the client sent it.
        date: day of the request, UTC.
        timestamp_ms: when it came; Unix time.
        status_code: the HTTP status; 499 if the client left before there was one.
        execution_time_ms: until the end of the answer.
        request: the client's body, and `response` the answer's choices, as JSON; null unless texts are exported.
        sampling_fraction: the share of requests that have rows.
        request_metadata: the endpoint's name, the model that answered, and the version of the endpoint.
        endpoint: its name.
        served_entity: who was asked last; null if nobody was.
        assigned: to whom the unit was assigned; null if there was nothing to assign.
        compared: whether the experiment compares arms by this request.
        outcome: what the client saw: "ok", "client_gone", "cancelled", or an error's kind.
        arm_outcome: what the assigned arm did: the same, or its own failure where another one was asked after it;
            "client_gone" where the time passed that the client had allowed.
        streamed: whether the client asked for a stream.
        finish_reasons: of the choices that finished.
        prompt_tokens: null, like `completion_tokens`, if the answer did not end.
        time_to_first_token: seconds, of a stream; null if it is not known. The very value that the experiment counts.
        latency: seconds until the end; likewise.
        unit_source: where the unit came from.
        unit: the first 16 hexadecimal digits of the unit's SHA-256.
        bucket: the unit's group in the statistics.
        config_version: of the endpoint; the split is part of its configuration, so that it is the split's version, too.
        protocol: with `dialect` and `operation`, what reads `request`.
    """

    databricks_request_id: str
    client_request_id: str | None
    date: str
    timestamp_ms: int
    status_code: int
    execution_time_ms: int
    request: str | None
    response: str | None
    sampling_fraction: float
    request_metadata: dict[str, str]
    endpoint: str
    served_entity: str | None
    assigned: str | None
    compared: bool
    outcome: str
    arm_outcome: str | None
    streamed: bool
    finish_reasons: tuple[str, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    time_to_first_token: float | None
    latency: float
    unit_source: str | None
    unit: str | None
    bucket: int | None
    config_version: int
    protocol: str = ""
    dialect: str = ""
    operation: str = ""


class Choice(msgspec.Struct, frozen=True):
    """One choice of an answer, as `Row.response` has it."""

    index: int
    text: str


class Response(msgspec.Struct, frozen=True):
    """The answer, in the same form whatever protocol it was sent in."""

    choices: tuple[Choice, ...]


class Exporter:
    """Writes one worker's rows.

    Args:
        files: to write to.
        with_text: whether requests and answers are written, too.
        lost: called with the number of rows that were lost.
    """

    def __init__(self, files: RowFiles, lost: Callable[[int], None], *, with_text: bool) -> None:
        self.with_text = with_text
        self._files = files
        self._lost = lost
        self._rows: deque[Row] = deque()
        self._counting = threading.Lock()
        self._lose(0)  # the count exists from the beginning, also while it is 0
        self._stopped = threading.Event()
        self._encoder = msgspec.json.Encoder()
        # A thread, because encoding and writing block; a daemon, so that a worker that fails to stop it can still exit.
        self._thread = threading.Thread(target=self._run, name="export", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, settings: Export | None, lost: Callable[[int], None]) -> Exporter | None:
        """What writes rows as they are configured; None if they are not."""
        if settings is None:
            return None
        # Named for the process, not for the slot: a restarted worker never appends to a line that was cut.
        files = RowFiles(Path(settings.folder), secrets.token_hex(8), settings.max_bytes, settings.files)
        return cls(files, lost, with_text=settings.text)

    def put(self, row: Row) -> None:
        """Have a row written. Does not block."""
        if len(self._rows) >= _MOST_WAITING:
            self._lose(1)
        else:
            self._rows.append(row)

    def close(self) -> None:
        """Write what is left. Blocks for as long as that takes."""
        self._stopped.set()
        self._thread.join()
        self._files.close()

    def _lose(self, rows: int) -> None:
        with self._counting:  # called by the worker's thread and by the one that writes
            self._lost(rows)

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self._write()
        self._write()

    def _write(self) -> None:
        # Only this thread takes rows out, so the count does not become wrong.
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows:
            return
        try:
            self._files.append(self._encoder.encode_lines(rows))
        except OSError as error:  # a full disk, for instance: the server goes on without these rows
            self._lose(len(rows))
            log.error("export.failed", rows=len(rows), error=str(error))


def read_rows(folder: Path) -> Iterator[Row]:
    """All rows of a folder, or of one exported file, by time.

    Raises:
        ValueError: a line is no row; the text names file and line.
        OSError: a file cannot be read.
    """
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else [folder]
    rows = [row for file in files for row in _read_file(file)]
    # Workers write side by side: sorted over all files.
    yield from sorted(rows, key=lambda row: (row.timestamp_ms, row.databricks_request_id))


def _read_file(file: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(Row)
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        # The last line has no end if its worker was killed in the middle of a write.
        if not line or number == len(lines):
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file}:{number}: is no row of an export: {error}") from None
