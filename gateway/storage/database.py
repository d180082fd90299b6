"""SQLite databases that the workers of one gateway share.

Strategy: WAL, so that readers never wait and writers wait for each other only, for as long as one short transaction
takes. A killed process loses nothing that it has committed. What must survive a power failure, too, needs a `lasting`
database: others are written with `synchronous=OFF`, and end with the server anyway. Do not place a database on a
network file system: WAL needs memory that its users share.

A connection serves one thread at a time and must not cross a fork; a worker opens its own after it has started.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OPEN_TIMEOUT = 10.0
"""Seconds that opening may wait for other processes that create the same database."""
_RETRY_INTERVAL = 0.005
_RECOVERED_WITHIN = 1000
"""Milliseconds."""
_CHECKPOINT_PAGES = 64
"""Pages (4 KiB) of the log that a commit moves to the database: few, so that no commit takes long."""


def connect(
    path: Path | None, schema: Sequence[str], version: int, *, wait: float = 0.0, lasting: bool = False
) -> sqlite3.Connection:
    """Open a database in autocommit mode, and create it if it is not there. Opening one that is there never waits.

    Args:
        path: its file (mode 0600), in a folder that is made with mode 0700 if need be; None: a private database that
            SQLite keeps in a temporary file without a name.
        schema: the statements that create it.
        version: of the schema, from 1.
        wait: seconds that a transaction may wait for another process's; 0: it fails at once (`is_busy`).
        lasting: whether what is committed survives a power failure; each commit then waits for the disk.

    Raises:
        OSError: the file cannot be made.
        sqlite3.Error: it cannot be opened, or has another schema version.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created here and not by SQLite, whose mode would follow the umask.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its log the same mode
    # `path or ""`: SQLite's name for a private database on the disk. `check_same_thread` is off because callers lock.
    # The timeout is for the setup only: `busy_timeout` below replaces it.
    connection = sqlite3.connect(path or "", timeout=_OPEN_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        _set_wal(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'OFF'}")
        if not lasting:
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        if _version(connection) == 0:  # 0: SQLite's default, nobody has created the schema
            _create(connection, schema, version)
        if (found := _version(connection)) != version:
            raise sqlite3.DatabaseError(f"the database has schema version {found}, this program needs {version}")
        connection.execute(f"PRAGMA busy_timeout = {round(wait * 1000)}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block writes, or nothing of it if the block raises.

    Raises:
        sqlite3.OperationalError: another process writes for longer than the connection waits (`is_busy`).
    """
    # IMMEDIATE takes the write lock now, when `busy_timeout` applies. A deferred transaction that reads first and then
    # writes fails at once if another process has written in between (SQLITE_BUSY_SNAPSHOT).
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    # Whatever ended the block, or made the commit fail: an open transaction would keep the lock from all workers.
    except BaseException:
        if connection.in_transaction:  # after some errors, as that of a full disk, SQLite has ended it
            connection.execute("ROLLBACK")
        raise


def read(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a query, over a connection that does not wait.

    Readers never wait for a writer, but for whoever recovers the log after a writer was killed: for milliseconds.
    """
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    connection.execute(f"PRAGMA busy_timeout = {_RECOVERED_WITHIN}")
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.execute("PRAGMA busy_timeout = 0")


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process held the lock: the same call may succeed a moment later."""
    # The low byte is the primary code; extended codes (SQLITE_BUSY_RECOVERY, ...) have more above it.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _set_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, which several processes may try at once; SQLite does not wait for them here."""
    deadline = time.monotonic() + _OPEN_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_INTERVAL)
        else:
            return


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create(connection: sqlite3.Connection, schema: Sequence[str], version: int) -> None:
    # The check is repeated under the write lock: of several workers that start at once, one creates the schema.
    with transaction(connection):
        if _version(connection) == 0:  # another process may have been faster
            for statement in schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")
