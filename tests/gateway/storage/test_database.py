"""Opening of shared SQLite databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.database import connect, is_busy, read, transaction

SCHEMA = ("CREATE TABLE note (text TEXT)",)


def notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM note")]


def test_a_database_is_created_once_and_then_opened(tmp_path: Path) -> None:
    one, other = (connect(tmp_path / "new" / "notes.sqlite3", SCHEMA, 1) for _ in range(2))
    with transaction(one):
        one.execute("INSERT INTO note VALUES ('a')")
        assert notes(other) == []
    assert notes(other) == ["a"]
    assert one.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    one.close()
    other.close()


def test_a_transaction_that_raises_writes_nothing() -> None:
    connection = connect(None, SCHEMA, 1)

    def write() -> None:
        with transaction(connection):
            connection.execute("INSERT INTO note VALUES ('a')")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert notes(connection) == []
    connection.close()


def test_a_commit_that_fails_leaves_the_database_to_others(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    of = "about INTEGER REFERENCES subject (id) DEFERRABLE INITIALLY DEFERRED"  # looked at by the commit
    schema = ("CREATE TABLE subject (id INTEGER PRIMARY KEY)", f"CREATE TABLE note (text TEXT, {of})")
    one, other = (connect(path, schema, 1) for _ in range(2))
    one.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.Error), transaction(one):
        one.execute("INSERT INTO note VALUES ('a', 7)")
    with transaction(other):
        other.execute("INSERT INTO note VALUES ('b', NULL)")
    assert notes(one) == ["b"]
    one.close()
    other.close()


def test_an_error_that_has_ended_the_transaction_is_the_one_that_is_raised(tmp_path: Path) -> None:
    connection = connect(tmp_path / "notes.sqlite3", SCHEMA, 1)

    def write() -> None:
        with transaction(connection):
            connection.execute("INSERT INTO note VALUES ('a')")
            connection.execute("ROLLBACK")  # as SQLite does if the disk is full
            raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError, match="full"):
        write()
    connection.close()


def test_a_connection_that_does_not_wait_reports_a_busy_database(tmp_path: Path) -> None:
    one, other = (connect(tmp_path / "notes.sqlite3", SCHEMA, 1) for _ in range(2))
    with transaction(one):
        with pytest.raises(sqlite3.OperationalError) as caught, transaction(other):
            pass
        assert is_busy(caught.value)
        assert notes(other) == [], "readers never wait"
    with pytest.raises(sqlite3.OperationalError) as caught:
        one.execute("SELECT nothing")
    assert not is_busy(caught.value)
    one.close()
    other.close()


class Recovering:
    """A connection whose first query comes while another process recovers the log."""

    def __init__(self, connection: sqlite3.Connection, code: int) -> None:
        self.connection, self.code, self.executed = connection, code, list[str]()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        self.executed.append(statement)
        if len(self.executed) == 1:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error
        return self.connection.execute(statement, values)


def test_a_read_waits_until_the_log_of_a_killed_writer_is_recovered() -> None:
    connection = connect(None, SCHEMA, 1)
    recovering: Any = Recovering(connection, sqlite3.SQLITE_BUSY_RECOVERY)
    assert read(recovering, "SELECT text FROM note WHERE text = ?", ("a",)) == []
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)
    assert len(recovering.executed) == 4
    broken: Any = Recovering(connection, sqlite3.SQLITE_CORRUPT)
    with pytest.raises(sqlite3.OperationalError):
        read(broken, "SELECT text FROM note", ())
    connection.close()


def test_opening_an_existing_database_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    one = connect(tmp_path / "notes.sqlite3", SCHEMA, 1)
    with transaction(one):
        other = connect(tmp_path / "notes.sqlite3", SCHEMA, 1)
        assert notes(other) == []
    one.close()
    other.close()


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    connect(tmp_path / "notes.sqlite3", SCHEMA, 1).close()
    with pytest.raises(sqlite3.DatabaseError, match="schema version 1, this program needs 2"):
        connect(tmp_path / "notes.sqlite3", SCHEMA, 2)
