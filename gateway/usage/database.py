"""The database of records: SQLite by default, PostgreSQL by its URL. Both get the same statements.

A connection serves one thread at a time. Statements have `?` in place of values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Final, Protocol, get_args, get_type_hints

from gateway.storage.database import connect, transaction
from gateway.usage.errors import DatabaseError
from gateway.usage.record import Record

_VERSION = 1
_SQLITE_WAIT = 10.0
"""Seconds that a transaction waits for another process's."""
_TYPES: Final = {str: "TEXT", int: "BIGINT", float: "DOUBLE PRECISION", bool: "BOOLEAN"}


class Database(Protocol):
    """A connection. Its methods raise `DatabaseError`."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what the block writes, or nothing of it if the block raises."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_database(address: str) -> Database:
    """Connect to a database, and create its tables if need be.

    Args:
        address: a file, or a URL of PostgreSQL.

    Raises:
        DatabaseError: that failed.
    """
    if "://" not in address:
        return _Sqlite(Path(address))
    from gateway.usage.postgres import Postgres

    return Postgres(address, schema("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"), _VERSION)


def schema(id_type: str) -> tuple[str, ...]:
    """The statements that create the tables; `id_type` is what a database calls a column that counts its rows."""
    fields = get_type_hints(Record).items()
    columns = ", ".join(f'"{name}" {_column_type(hint)}' for name, hint in fields)
    return (
        # `id` is the order of arrival, which pages of records follow.
        f"CREATE TABLE usage_record (id {id_type}, {columns})",
        "CREATE INDEX usage_record_time ON usage_record (time_ms, id)",
        "CREATE INDEX usage_record_key ON usage_record (key_id, time_ms, id)",
        # How far each file of waiting records is in the database: a line goes with its file, and at no other time.
        "CREATE TABLE usage_spool (file TEXT PRIMARY KEY, bytes BIGINT NOT NULL)",
    )


def _column_type(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return _TYPES[get_args(hint)[0]]
    return f"{_TYPES[hint]} NOT NULL"


class _Sqlite:
    """A file of SQLite."""

    def __init__(self, path: Path) -> None:
        with _errors():
            self._connection = connect(
                path, schema("INTEGER PRIMARY KEY AUTOINCREMENT"), _VERSION, wait=_SQLITE_WAIT, lasting=True
            )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _errors(), transaction(self._connection):
            yield

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(str(error)) from None
