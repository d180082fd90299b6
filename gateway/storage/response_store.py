"""Stored responses (`/v1/responses/{id}`), in a SQLite database that all workers share.

A cache: when it is full the least recently used responses go, and all of them go with the server. A response's name is
a digest of its id and of the API key of the request, so that another key finds nothing. Why SQLite: decision 15.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
from pathlib import Path

import structlog

from adapters.base import Record
from gateway.storage.database import connect, is_busy, read, transaction

log = structlog.get_logger()

# Without it, one huge response would push out those of all other clients.
LARGEST_SHARE = 16  # one response may take this part of the limit
_ROW_OVERHEAD = 256  # bytes that a row takes beside its data, roughly
_LOCK_TIMEOUT = 5.0  # seconds
# `used` is a logical clock: the largest is the latest use. UNIQUE gives it an index, so that the oldest row and the
# next tick are found without a scan. `total` saves summing over all rows at each write; triggers keep it right.
_SCHEMA = (
    "CREATE TABLE response (name BLOB PRIMARY KEY, used INTEGER NOT NULL UNIQUE, bytes INTEGER NOT NULL,"
    " data BLOB NOT NULL)",
    "CREATE TABLE total (bytes INTEGER NOT NULL)",
    "INSERT INTO total VALUES (0)",
    "CREATE TRIGGER added AFTER INSERT ON response BEGIN UPDATE total SET bytes = bytes + new.bytes; END",
    "CREATE TRIGGER removed AFTER DELETE ON response BEGIN UPDATE total SET bytes = bytes - old.bytes; END",
)
_VERSION = 1
_NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM response)"


class ResponseStore:
    """The responses of all workers.

    Reads run on the event loop: in WAL mode they never wait. A write runs there, too, as long as no other worker is
    writing; otherwise it waits in a thread.

    Args:
        limit: bytes that all responses together may take.
        folder: shared by all workers; None: the store is this worker's alone, and nothing of it is left on the disk.
    """

    def __init__(self, limit: int, folder: Path | None = None) -> None:
        self._limit = limit
        self._path = folder / "responses.sqlite3" if folder is not None else None
        # Opened at first use: a server that stores nothing makes no file, and a connection must not cross a fork.
        self._opened: sqlite3.Connection | None = None
        self._lock = threading.Lock()  # large bodies are decoded, and ask for responses, in threads
        self._unwritten_uses: set[bytes] = set()

    def of(self, key: str) -> KeyResponses:
        """Return the responses of an API key; "" stands for requests without one."""
        return KeyResponses(self, key)

    def get(self, name: bytes) -> bytes | None:
        """Return a response and mark it as used; None if there is none."""
        with self._lock:
            rows = read(self._connection, "SELECT data FROM response WHERE name = ?", (name,))
            if not rows:
                return None
            try:
                # A read must not fail, nor wait on the event loop, because another worker is writing.
                _mark_used(self._connection, {name})
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                self._unwritten_uses.add(name)  # the next write of this worker catches up
        return bytes(rows[0][0])

    def fits(self, data: bytes) -> bool:
        """Whether a response is small enough to be stored."""
        return len(data) + _ROW_OVERHEAD <= self._limit // LARGEST_SHARE

    async def put(self, name: bytes, data: bytes) -> bool:
        """Store a response and return True; return False if it is too large.

        Raises:
            OSError, sqlite3.Error: it cannot be written.
        """
        if not self.fits(data):
            return False
        try:
            # The usual case stays on the event loop: a write takes less time than handing it to a thread.
            with self._lock:
                self._write(self._connection, name, data)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            # The thread waits with a connection of its own, up to `_LOCK_TIMEOUT`; the loop goes on.
            await asyncio.to_thread(self._write_waiting, name, data)
        return True

    def delete(self, name: bytes) -> bool:
        """Delete a response; return whether there was one. Waits for another worker's write."""
        try:
            with self._lock:
                return _delete(self._connection, name)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        # A delete is rare, so it may wait on the event loop for the other worker's short transaction.
        connection = self._connect(_LOCK_TIMEOUT)
        try:
            return _delete(connection, name)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the database. A private one is gone then."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = self._connect(wait=0.0)
        return self._opened

    def _connect(self, wait: float) -> sqlite3.Connection:
        return connect(self._path, _SCHEMA, _VERSION, wait=wait)

    def _write_waiting(self, name: bytes, data: bytes) -> None:
        connection = self._connect(_LOCK_TIMEOUT)  # the event loop may use the other one meanwhile
        try:
            self._write(connection, name, data)
        finally:
            connection.close()

    def _write(self, connection: sqlite3.Connection, name: bytes, data: bytes) -> None:
        """Write a response, and delete the least recently used ones that exceed the limit."""
        with transaction(connection):
            # A copy: `get` may add names meanwhile, as a write in a thread does not hold `_lock`.
            if uses := set(self._unwritten_uses):
                _mark_used(connection, uses)
                self._unwritten_uses -= uses
            # DELETE and INSERT, not REPLACE: SQLite fires no delete trigger for a replaced row unless recursive
            # triggers are on, and the total would drift.
            connection.execute("DELETE FROM response WHERE name = ?", (name,))
            row = (name, len(data) + _ROW_OVERHEAD, data)
            connection.execute(f"INSERT INTO response VALUES (?1, {_NEXT_USE}, ?2, ?3)", row)  # noqa: S608
            # Ends: the new row is at most a sixteenth of the limit, and it is the last to be the oldest.
            while connection.execute("SELECT bytes FROM total").fetchone()[0] > self._limit:
                connection.execute("DELETE FROM response WHERE used = (SELECT min(used) FROM response)")


class KeyResponses:
    """The responses of one API key; `adapters.base.Records`."""

    def __init__(self, store: ResponseStore, key: str) -> None:
        self._store = store
        self._key = key

    def get(self, id: str) -> bytes | None:
        """Return the response with this id; None if there is none any more."""
        return self._store.get(name_of(self._key, id))

    def delete(self, id: str) -> bool:
        """Delete a response; return whether there was one."""
        return self._store.delete(name_of(self._key, id))

    async def load(self, id: str) -> bytes | None:
        """`get`, for callers that can wait, as a store of several gateways needs."""
        return self.get(id)

    async def drop(self, id: str) -> bool:
        """`delete`, likewise."""
        return self.delete(id)

    def fits(self, data: bytes) -> bool:
        """Whether a response is small enough to be stored."""
        return self._store.fits(data)

    async def keep(self, record: Record) -> bool:
        """Store a response; returns whether it was stored.

        A response that is too large or cannot be written is logged: the answer itself is still sent.
        """
        assert record.data is not None
        try:
            if await self._store.put(name_of(self._key, record.id), record.data):
                return True
            log.warning("response.too_large", id=record.id, bytes=len(record.data))
        except (OSError, sqlite3.Error) as error:
            log.error("response.not_stored", id=record.id, error=str(error))
        return False


def name_of(key: str, id: str) -> bytes:
    """The name of a response: a digest of the API key and the id."""
    # NUL separates: it occurs in no header, so no key and id can be confused with another pair.
    return hashlib.blake2b(f"{key}\0{id}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _delete(connection: sqlite3.Connection, name: bytes) -> bool:
    return connection.execute("DELETE FROM response WHERE name = ?", (name,)).rowcount > 0


def _mark_used(connection: sqlite3.Connection, names: set[bytes]) -> None:
    for name in names:
        connection.execute(f"UPDATE response SET used = {_NEXT_USE} WHERE name = ?", (name,))  # noqa: S608
