"""Answers to requests for usage: pages of JSON, files of CSV and Parquet."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from litestar import Response
from litestar.response import Stream

from gateway.http.api.usage.parameters import FORMATS, encode_cursor
from gateway.storage.parquet import ParquetMissingError, write_parquet
from gateway.usage.database import Database
from gateway.usage.errors import DatabaseError
from gateway.usage.ledger import Ledger
from gateway.usage.query import Cursor, Range
from gateway.usage.tables import Columns, Row, as_json, csv_parts, shown_time
from schemas.errors import BackendUnavailable, InvalidRequest

T = TypeVar("T")

_CHUNK = 1 << 16
"""Bytes of a file that are sent at a time."""


_THREADS = ThreadPoolExecutor(2, "usage-query")
"""Of their own: many long queries must not take the threads that decode requests."""


async def _in_thread(function: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *given)


async def read(ledger: Ledger, find: Callable[[Database], T], *, close: bool = True) -> T:
    """What `find` returns, in a thread.

    Raises:
        schemas.errors.BackendUnavailable: the database cannot be reached.
        schemas.errors.InvalidRequest: the cursor is wrong.
    """

    def run() -> T:
        database = ledger.read()
        try:
            return find(database)
        finally:
            if close:
                database.close()

    try:
        return await _in_thread(run)
    except DatabaseError as error:
        raise _away(error) from None
    except ValueError:
        raise InvalidRequest("The parameter 'after' is none that this query has returned.") from None


def page_of(within: Range, rows: Iterable[Row], last: Cursor | None, by: tuple[str, ...] = ()) -> Response[bytes]:
    """A page of rows as JSON."""
    body = {"start": _shown(within.start_ms), "end": _shown(within.end_ms)}
    more: dict[str, Any] = {"group_by": by} if by else {}
    more |= {"data": [as_json(row) for row in rows], "next": encode_cursor(last)}
    return Response(msgspec.json.encode(body | more), media_type="application/json")


async def file_of(kind: str, columns: Columns, rows: Iterable[Row], database: Database | None = None) -> Stream:
    """Rows as a file of CSV or Parquet; the database is closed at its end.

    Raises:
        schemas.errors.RequestError: there is no library for the format, or the database cannot be read.
    """
    parts = csv_parts(columns, rows) if kind == "csv" else _parquet(columns, rows)
    try:
        first = await _in_thread(next, parts)  # before the status line: a failure here has a status of its own
    except (ParquetMissingError, DatabaseError) as error:
        if database is not None:
            database.close()
        if isinstance(error, ParquetMissingError):
            raise InvalidRequest(str(error)) from None
        raise _away(error) from None
    disposition = {"content-disposition": f'attachment; filename="usage.{kind}"'}
    return Stream(_sent(first, parts, database), media_type=FORMATS[kind], headers=disposition)


async def _sent(first: bytes, parts: Iterator[bytes], database: Database | None) -> AsyncIterator[bytes]:
    try:
        part: bytes | None = first
        while part is not None:
            yield part
            part = await _in_thread(next, parts, None)
    finally:
        if database is not None:
            database.close()


def _parquet(columns: Columns, rows: Iterable[Row]) -> Iterator[bytes]:
    # Parquet's index is at the end, so nothing can be sent before all is written.
    with tempfile.TemporaryFile() as file:
        write_parquet(columns, rows, file)
        file.seek(0)
        while part := file.read(_CHUNK):
            yield part


def _away(error: DatabaseError) -> BackendUnavailable:
    return BackendUnavailable(f"The database of usage cannot be read: {error}", retry_after=5.0)


def _shown(milliseconds: int) -> str:
    return shown_time(datetime.fromtimestamp(milliseconds / 1000, UTC))
