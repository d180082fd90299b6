"""Stored objects (conversations, chat completions, answers in the background), in a SQLite database of all workers.

An object has data and a list of entries, and belongs to one API key: its name is a digest of the key, its kind and its
id, so that another key finds nothing. An object expires some time after its last change. When all of them take more
than the limit, whole objects are deleted, the least recently changed ones first: a conversation is there with all of
its items or not at all. Answers that a living worker makes are not deleted for others: a worker's lease is an object,
too, and the data of an answer ends with the name of its worker.

`KeyObjects` is the interface that another store (of several servers) has to have. Its methods are asynchronous for that
store's sake: here, a read never waits, and a write waits in a thread if another worker is writing.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from adapters.objects import Entry, Page, Span
from gateway.storage.database import connect, is_busy, read, transaction

T = TypeVar("T")

OF_NO_CLIENT = "\0"
"""A key that no client can have: no header holds NUL."""
WORKER = "worker"
"""The kind of the leases of workers, which are objects of that key."""

_LARGEST_SHARE = 16  # one object may take this part of the limit: it would push out those of all other clients
_ROW_OVERHEAD = 256  # bytes that a row takes beside its data, roughly
_LOCK_TIMEOUT = 5.0  # seconds
# `used` is a logical clock: the largest is the latest change. `bytes` includes the entries. `total` saves summing over
# all rows at each write; triggers keep it right.
_SCHEMA = (
    "CREATE TABLE object (name BLOB PRIMARY KEY, list BLOB NOT NULL, id TEXT NOT NULL, made INTEGER NOT NULL,"
    " used INTEGER NOT NULL UNIQUE, expires REAL NOT NULL, bytes INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX listed ON object (list, made)",
    "CREATE INDEX expiring ON object (expires)",
    "CREATE TABLE entry (number INTEGER PRIMARY KEY AUTOINCREMENT, object BLOB NOT NULL, id TEXT NOT NULL,"
    " data BLOB NOT NULL)",
    "CREATE INDEX of_object ON entry (object, number)",
    "CREATE INDEX named ON entry (object, id)",
    "CREATE TABLE total (bytes INTEGER NOT NULL)",
    "INSERT INTO total VALUES (0)",
    "CREATE TRIGGER added AFTER INSERT ON object BEGIN UPDATE total SET bytes = bytes + new.bytes; END",
    "CREATE TRIGGER resized AFTER UPDATE OF bytes ON object"
    " BEGIN UPDATE total SET bytes = bytes + new.bytes - old.bytes; END",
    "CREATE TRIGGER removed AFTER DELETE ON object"
    " BEGIN UPDATE total SET bytes = bytes - old.bytes; DELETE FROM entry WHERE object = old.name; END",
)
_VERSION = 1
_NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM object)"
# The oldest object that may be deleted for others: no lease, no answer of a worker with a lease, and not the latest.
_OLDEST = (
    "SELECT used FROM object WHERE list != ?1 AND used < (SELECT max(used) FROM object)"
    " AND NOT EXISTS (SELECT 1 FROM object AS lease WHERE lease.list = ?1"
    " AND substr(object.data, -length(lease.id)) = CAST(lease.id AS BLOB)) ORDER BY used LIMIT 1"
)


class TooLarge(ValueError):
    """An object would take more than its share of the store."""


class ObjectStore:
    """The objects of all workers.

    Args:
        limit: bytes that all objects together may take.
        seconds: after its last change an object expires.
        path: the database's file, shared by all workers; None: the store is this worker's alone, and nothing of it is
            left on the disk.
        now: clock that gives Unix time in seconds.
    """

    def __init__(
        self, limit: int, seconds: float, path: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.largest = limit // _LARGEST_SHARE
        self.seconds = seconds
        self.now = now
        self._limit = limit
        self._path = path
        self._opened: sqlite3.Connection | None = None  # at first use: a connection must not cross a fork
        self._lock = threading.Lock()

    def of(self, key: str) -> KeyObjects:
        """The objects of an API key; "" stands for requests without one."""
        return KeyObjects(self, key)

    def read(self, query: str, values: tuple[object, ...]) -> list[tuple[bytes, ...]]:
        """The rows of a query."""
        with self._lock:
            return read(self._connection, query, values)

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Carry out a change in a transaction, and delete what is more than the limit or has expired.

        Raises:
            OSError, sqlite3.Error: it cannot be written.
        """
        try:
            # The usual case stays on the event loop: a write takes less time than handing it to a thread.
            with self._lock:
                return self._change(self._connection, change)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return await asyncio.to_thread(self._change_waiting, change)

    def close(self) -> None:
        """Close the database. A private one is gone then."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = connect(self._path, _SCHEMA, _VERSION)
        return self._opened

    def _change_waiting(self, change: Callable[[sqlite3.Connection], T]) -> T:
        # A connection of its own, which waits; the event loop uses the other one meanwhile.
        connection = connect(self._path, _SCHEMA, _VERSION, wait=_LOCK_TIMEOUT)
        try:
            return self._change(connection, change)
        finally:
            connection.close()

    def _change(self, connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
        with transaction(connection):
            connection.execute("DELETE FROM object WHERE expires <= ?", (self.now(),))
            done = change(connection)
            while connection.execute("SELECT bytes FROM total").fetchone()[0] > self._limit:
                oldest = connection.execute(_OLDEST, (_digest(OF_NO_CLIENT, WORKER),)).fetchone()
                if oldest is None:
                    break  # the answers that are being made exceed the limit until they end
                connection.execute("DELETE FROM object WHERE used = ?", oldest)
            return done


class KeyObjects:
    """The objects of one API key."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key

    async def get(self, kind: str, id: str) -> bytes | None:
        """The data of an object; None if there is none any more."""
        found = self._store.read(
            "SELECT data FROM object WHERE name = ? AND expires > ?", (self._name(kind, id), self._store.now())
        )
        return bytes(found[0][0]) if found else None

    async def put(
        self, kind: str, id: str, data: bytes, entries: Iterable[Entry] = (), seconds: float | None = None
    ) -> bool:
        """Make an object, or replace it with all of its entries; returns whether it is small enough.

        Args:
            kind: of the object.
            id: among those of its kind.
            data: of the object.
            entries: likewise, in order.
            seconds: until it expires; None: the store's.

        Raises:
            OSError, sqlite3.Error: it cannot be written.
        """
        name, given = self._name(kind, id), tuple(entries)
        size = _size(data, given)
        if size > self._store.largest:
            return False
        expires = self._store.now() + (self._store.seconds if seconds is None else seconds)

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM object WHERE name = ?", (name,))
            connection.execute(
                f"INSERT INTO object VALUES (?1, ?2, ?3, {_NEXT_USE}, {_NEXT_USE}, ?4, ?5, ?6)",  # noqa: S608
                (name, self._list(kind), id, expires, size, data),
            )
            _insert(connection, name, given)

        await self._store.write(change)
        return True

    async def append(
        self, kind: str, id: str, entries: Iterable[Entry] = (), data: bytes | None = None, was: bytes | None = None
    ) -> bool:
        """Append entries to an object, and replace its data unless `data` is None.

        Returns whether that was done: the object is there, and its data was `was` unless that is None.

        Raises:
            TooLarge: the object would be.
            OSError, sqlite3.Error: it cannot be written.
        """
        name, given = self._name(kind, id), tuple(entries)
        expires = self._store.now() + self._store.seconds

        def change(connection: sqlite3.Connection) -> bool:
            found = connection.execute("SELECT bytes, data FROM object WHERE name = ?", (name,)).fetchone()
            if found is None or (was is not None and bytes(found[1]) != was):
                return False
            kept = bytes(found[1]) if data is None else data
            size = found[0] - len(found[1]) + _size(kept, given) - _ROW_OVERHEAD
            if size > self._store.largest:
                raise TooLarge
            connection.execute(
                f"UPDATE object SET used = {_NEXT_USE}, expires = max(expires, ?), bytes = ?, data = ? WHERE name = ?",  # noqa: S608
                (expires, size, kept, name),
            )
            _insert(connection, name, given)
            return True

        return await self._store.write(change)

    async def delete(self, kind: str, id: str) -> bool:
        """Delete an object with its entries; returns whether there was one."""
        name = self._name(kind, id)
        return await self._store.write(
            lambda connection: connection.execute("DELETE FROM object WHERE name = ?", (name,)).rowcount > 0
        )

    async def page(self, kind: str, span: Span) -> Page:
        """Objects of a kind, in the order in which they were made."""
        after = self._store.read("SELECT made FROM object WHERE name = ?", (self._name(kind, span.after),))
        where = "list = ? AND expires > ?"
        values = (self._list(kind), self._store.now())
        return self._page(f"object WHERE {where}", values, "made", after, span)

    async def entries(self, kind: str, id: str, span: Span) -> Page | None:
        """The entries of an object; None if there is no such object any more."""
        if await self.get(kind, id) is None:
            return None
        name = self._name(kind, id)
        after = self._store.read("SELECT max(number) FROM entry WHERE object = ? AND id = ?", (name, span.after))
        return self._page("entry WHERE object = ?", (name,), "number", after, span)

    async def entry(self, kind: str, id: str, entry: str) -> bytes | None:
        """The data of an entry; None if there is none any more."""
        values = (self._name(kind, id), entry)
        found = self._store.read("SELECT data FROM entry WHERE object = ? AND id = ? ORDER BY number DESC", values)
        return bytes(found[0][0]) if found else None

    async def drop(self, kind: str, id: str, entry: str) -> bool:
        """Delete an entry; returns whether there was one."""
        name = self._name(kind, id)

        def change(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                "SELECT number, length(data) FROM entry WHERE object = ? AND id = ?", (name, entry)
            ).fetchall()
            for number, size in found:
                connection.execute("DELETE FROM entry WHERE number = ?", (number,))
                connection.execute("UPDATE object SET bytes = bytes - ? WHERE name = ?", (size + _ROW_OVERHEAD, name))
            return bool(found)

        return await self._store.write(change)

    def _page(
        self, source: str, values: tuple[object, ...], order: str, after: list[tuple[bytes, ...]], span: Span
    ) -> Page:
        """A part of a query's rows, from the row behind the place `after`."""
        direction, sign = ("DESC", "<") if span.newest_first else ("ASC", ">")
        if after and after[0][0] is not None:
            source += f" AND {order} {sign} ?"
            values += (after[0][0],)
        # One row more than asked shows whether others follow.
        query = f"SELECT id, data FROM {source} ORDER BY {order} {direction} LIMIT ?"  # noqa: S608
        rows = self._store.read(query, (*values, span.limit + 1))
        found = tuple(Entry(str(id), bytes(data)) for id, data in rows[: span.limit])
        return Page(found, len(rows) > span.limit)

    def _name(self, kind: str, id: str) -> bytes:
        return _digest(self._key, kind, id)

    def _list(self, kind: str) -> bytes:
        return _digest(self._key, kind)


def _digest(*parts: str) -> bytes:
    # Lengths keep the parts apart: no key, kind and id can be confused with others.
    text = "\0".join((*(str(len(part)) for part in parts), *parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _size(data: bytes, entries: tuple[Entry, ...]) -> int:
    return len(data) + _ROW_OVERHEAD + sum(len(entry.data) + _ROW_OVERHEAD for entry in entries)


def _insert(connection: sqlite3.Connection, name: bytes, entries: tuple[Entry, ...]) -> None:
    connection.executemany(
        "INSERT INTO entry (object, id, data) VALUES (?, ?, ?)", [(name, entry.id, entry.data) for entry in entries]
    )
