"""Files of clients: rows of the database, and their contents as files of a folder, named by their ids alone."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from pathlib import Path

from adapters.batches import Page, Range, StoredFile
from gateway.batches.database import Database, in_thread
from schemas.errors import InvalidRequest

_OVERHEAD = 4096
"""Bytes that a file counts for beside its content, so that empty ones are bounded, too."""
_ABANDONED = 3600.0
"""Seconds after which a file without a row belongs to nobody: its upload, or its batch, has ended long ago."""
_COLUMNS = "id, name, purpose, bytes, created, expires"
_PREFIX = "file-"


class FileStore:
    """The files of all keys. `owner` is the digest of a key; one never sees another's files.

    Args:
        database: shared with the batches.
        folder: of the contents; made if need be.
        most: bytes that the files of one owner may have together.
    """

    def __init__(self, database: Database, folder: Path, most: int) -> None:
        self.database = database
        self._folder = folder
        self._most = most

    def new(self) -> Path:
        """The path of a new file, which nobody finds before it is added."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / f"{_PREFIX}{secrets.token_hex(16)}"

    def path(self, id: str) -> Path:
        """Where the content of a file that is known lies."""
        return self._folder / id

    @in_thread
    def room(self, owner: str) -> int:
        """How many bytes another file of an owner may have."""
        return self._most - _used(self.database.connection, owner) - _OVERHEAD

    @in_thread
    def add(self, owner: str, path: Path, name: str, purpose: str, expires: int | None) -> StoredFile:
        """Add a file whose content is written.

        Raises:
            schemas.errors.InvalidRequest: the owner's files have too many bytes.
            OSError: the content cannot be synchronized to the disk.
        """
        file = describe(path, name, purpose, expires)
        with self.database.transaction() as connection:
            if _used(connection, owner) + file.bytes + _OVERHEAD > self._most:
                raise InvalidRequest(f"The files of this key may have {self._most} bytes together: delete some first.")
            insert(connection, owner, file)
        return file

    @in_thread
    def get(self, owner: str, id: str) -> StoredFile | None:
        """A file; None if there is none, or no longer."""
        row = self.database.connection.execute(
            f"SELECT {_COLUMNS} FROM file WHERE id = ? AND owner = ? AND coalesce(expires, ?) > ?",  # noqa: S608
            (id, owner, int(time.time()) + 1, int(time.time())),
        ).fetchone()
        return None if row is None else StoredFile(*row)

    @in_thread
    def page(self, owner: str, range: Range) -> Page[StoredFile]:
        """A part of an owner's files with a purpose. An unknown `after` is no error: the page begins at the first."""
        order, beyond = ("ASC", ">") if range.ascending else ("DESC", "<")
        now = int(time.time())
        where = "owner = ? AND coalesce(expires, ?) > ? AND purpose != ''"
        values: list[object] = [owner, now + 1, now]
        if range.purpose is not None:
            where += " AND purpose = ?"
            values.append(range.purpose)
        if range.after is not None:
            cursor = "SELECT number FROM file WHERE id = ? AND owner = ?"
            row = self.database.connection.execute(cursor, (range.after, owner)).fetchone()
            if row is not None:
                where += f" AND number {beyond} ?"
                values.append(row[0])
        statement = f"SELECT {_COLUMNS} FROM file WHERE {where} ORDER BY number {order} LIMIT ?"  # noqa: S608
        rows = self.database.connection.execute(statement, (*values, range.limit + 1)).fetchall()
        return Page(tuple(StoredFile(*row) for row in rows[: range.limit]), len(rows) > range.limit)

    @in_thread
    def delete(self, owner: str, id: str) -> bool:
        """Delete a file; return whether there was one."""
        with self.database.transaction() as connection:
            found = connection.execute("DELETE FROM file WHERE id = ? AND owner = ?", (id, owner)).rowcount > 0
        if found:
            self.path(id).unlink(missing_ok=True)
        return found

    @in_thread
    def sweep(self) -> None:
        """Remove the files that have expired, and contents that belong to nobody."""
        now = time.time()
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM file WHERE expires <= ?", (int(now),))
        known = {row[0] for row in self.database.connection.execute("SELECT id FROM file")}
        if not self._folder.exists():
            return
        for entry in os.scandir(self._folder):
            if entry.name not in known and entry.stat().st_mtime < now - _ABANDONED:
                Path(entry.path).unlink(missing_ok=True)


def describe(path: Path, name: str, purpose: str, expires: int | None) -> StoredFile:
    """A file whose content is written, synchronized to the disk.

    Raises:
        OSError: it cannot be.
    """
    with path.open("rb") as content:
        os.fsync(content.fileno())
        size = os.fstat(content.fileno()).st_size
    now = int(time.time())
    return StoredFile(path.name, name, purpose, size, now, None if expires is None else now + expires)


def insert(connection: sqlite3.Connection, owner: str, file: StoredFile) -> None:
    """Write the row of a file."""
    connection.execute(
        f"INSERT INTO file ({_COLUMNS}, owner) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (file.id, file.name, file.purpose, file.bytes, file.created, file.expires, owner),
    )


def _used(connection: sqlite3.Connection, owner: str) -> int:
    statement = f"SELECT coalesce(sum(bytes + {_OVERHEAD}), 0) FROM file WHERE owner = ?"  # noqa: S608
    return int(connection.execute(statement, (owner,)).fetchone()[0])
