"""The database of files and batches: SQLite, one connection and one thread for each worker.

All statements of a worker run in that thread, one after the other, so that neither a slow disk nor another worker's
write holds up the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from gateway.storage.database import connect, transaction

P = ParamSpec("P")
T = TypeVar("T")

_VERSION = 1
_WAIT = 30.0
"""Seconds that a transaction waits for another worker's."""
_SCHEMA = (
    # `number` is the order of creation, which pages follow. `owner` is the digest of a key, "" without keys.
    "CREATE TABLE file (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
    " name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER)",
    "CREATE INDEX file_owner ON file (owner, number)",
    # `data` is an `adapters.batches.Batch` as JSON, without what has a column of its own. `worker` has the batch until
    # `lease`, a Unix time; `keep_until` is None until the batch has ended.
    "CREATE TABLE batch (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
    " protocol TEXT NOT NULL, state TEXT NOT NULL, completed INTEGER NOT NULL DEFAULT 0,"
    " failed INTEGER NOT NULL DEFAULT 0, worker TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0,"
    " keep_until INTEGER, data BLOB NOT NULL)",
    "CREATE INDEX batch_owner ON batch (owner, protocol, number)",
    "CREATE INDEX batch_open ON batch (lease) WHERE keep_until IS NULL",
    # `status` is the mark that a line is done; the answer is written with it.
    "CREATE TABLE line (batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, body BLOB NOT NULL,"
    " status INTEGER, request_id TEXT, answer BLOB, PRIMARY KEY (batch, number))",
    "CREATE INDEX line_pending ON line (batch, number) WHERE status IS NULL",
)


class Database:
    """A worker's connection, opened at first use, and the thread that uses it.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self.thread = ThreadPoolExecutor(1, "batches")

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for the thread alone."""
        if self._opened is None:
            self._opened = connect(self._path, _SCHEMA, _VERSION, wait=_WAIT, lasting=True)
        return self._opened

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block writes, or nothing of it if the block raises."""
        with transaction(self.connection):
            yield self.connection

    def close(self) -> None:
        """Close the connection. What has been begun in the thread ends first."""
        self.thread.shutdown()
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class UsesDatabase(Protocol):
    """What has methods that run in a database's thread."""

    database: Database


U = TypeVar("U", bound=UsesDatabase)


def in_thread(method: Callable[Concatenate[U, P], T]) -> Callable[Concatenate[U, P], Awaitable[T]]:
    """A method as a coroutine that runs it in the thread of the database."""

    @functools.wraps(method)
    async def run(self: U, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(method, self, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.database.thread, call)

    return run
