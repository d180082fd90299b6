"""Moves records from the files of all workers into the database, each exactly once.

Strategy: whoever holds a lock reads the files on, and writes the records and the new place in the file in one
transaction: after a failure anywhere, either both are in the database or neither.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import msgspec
import structlog

from gateway.usage.database import Database, open_database
from gateway.usage.errors import DatabaseError
from gateway.usage.record import COLUMNS, Record
from gateway.usage.spool import files, has_writer, read_lines

log = structlog.get_logger()

_CHUNK = 1 << 18
"""Bytes of a file that one transaction takes."""
_DELETED = 1000
"""Records that one transaction deletes: others wait no longer than for so many."""
_ROWS = 50
"""Records that one statement inserts: twice as fast as one by one."""
_ROW = f"({', '.join('?' * len(COLUMNS))})"
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_INSERT = f"INSERT INTO usage_record ({_NAMES}) VALUES "  # noqa: S608 - own names


class Collector:
    """Collects for one process.

    Args:
        folder: of the files.
        address: of the database.
        lost: called with the number of records that could not be read.
    """

    def __init__(self, folder: Path, address: str, lost: Callable[[int], None] = lambda _: None) -> None:
        self._folder = folder
        self._address = address
        self._lost = lost
        self._database: Database | None = None
        self._using = threading.Lock()
        self._decoder = msgspec.json.Decoder(Record)

    def collect(self, *, wait: bool) -> bool:
        """Move all records that are in files by now; with `wait`, also if another process is at it.

        Returns:
            Whether they are in the database now.

        Raises:
            DatabaseError: the database cannot be written; the records stay in their files.
        """
        try:
            with self._using, self._locked(wait) as locked:
                if not locked:
                    return False
                with self._connected() as database:
                    for path in files(self._folder):
                        self._collect(database, path)
                return True
        except OSError as error:
            raise DatabaseError(f"the records in {self._folder} cannot be read: {error}") from None

    def delete_before(self, seconds: float) -> int:
        """Delete the records of requests before a Unix time; return how many there were.

        Raises:
            DatabaseError: the database cannot be written.
        """
        deleted, until = 0, int(seconds * 1000)
        oldest = f"SELECT id FROM usage_record WHERE time_ms < ? ORDER BY time_ms LIMIT {_DELETED}"  # noqa: S608
        with self._using, self._connected() as database:
            while True:
                with database.transaction():
                    found = database.execute(f"DELETE FROM usage_record WHERE id IN ({oldest}) RETURNING id", (until,))  # noqa: S608
                deleted += len(found)
                if len(found) < _DELETED:
                    return deleted

    def close(self) -> None:
        """Close the connection."""
        with self._using:
            self._disconnect()

    @contextmanager
    def _locked(self, wait: bool) -> Iterator[bool]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(lock)

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        if self._database is None:
            self._database = open_database(self._address)
        try:
            yield self._database
        except DatabaseError:
            self._disconnect()  # it may be broken: the next call begins with a new one
            raise

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _collect(self, database: Database, path: Path) -> None:
        written = has_writer(path)  # asked first: what a writer that has just ended wrote is read below
        size = path.stat().st_size
        found = database.execute("SELECT bytes FROM usage_spool WHERE file = ?", (path.name,))
        at = found[0][0] if found else 0
        while at < size and (lines := read_lines(path, at, _CHUNK)):
            at += len(lines)
            self._insert(database, path, lines, at)
        if not written:
            path.unlink()
            # After the file: a file whose place is forgotten would be read again.
            database.execute("DELETE FROM usage_spool WHERE file = ?", (path.name,))

    def _insert(self, database: Database, path: Path, lines: bytes, until: int) -> None:
        records = self._decode(lines, path)
        with database.transaction():
            for first in range(0, len(records), _ROWS):
                rows = records[first : first + _ROWS]
                values = list(chain.from_iterable(map(msgspec.structs.astuple, rows)))
                database.execute(_INSERT + ", ".join([_ROW] * len(rows)), values)
            database.execute(
                "INSERT INTO usage_spool (file, bytes) VALUES (?, ?)"
                " ON CONFLICT (file) DO UPDATE SET bytes = excluded.bytes",
                (path.name, until),
            )

    def _decode(self, lines: bytes, path: Path) -> list[Record]:
        try:
            return self._decoder.decode_lines(lines)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a broken disk, or another program's file: one line must not hold up all others
        records = []
        for line in lines.splitlines():
            try:
                records.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.error("usage.unreadable", file=str(path), error=str(error))
                self._lost(1)
        return records
