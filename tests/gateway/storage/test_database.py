"""Opening of shared SQLite databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.storage.database import connect, is_busy, transaction

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
