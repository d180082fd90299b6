"""Every record gets into the database once, whatever fails on the way."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.usage import collector as module
from gateway.usage.collector import Collector
from gateway.usage.database import open_database
from gateway.usage.errors import DatabaseError
from gateway.usage.spool import Spool, files
from tests.gateway.usage.records import record

pytestmark = pytest.mark.usefixtures("_closed_databases")


def collecting(folder: Path, lost: Callable[[int], None] = lambda _: None) -> Collector:
    return Collector(folder / "spool", str(folder / "usage"), lost)


def ids(folder: Path) -> list[str]:
    database = open_database(str(folder / "usage"))
    found = database.execute("SELECT request_id FROM usage_record ORDER BY id")
    database.close()
    return [row[0] for row in found]


def written(folder: Path, count: int, since: int = 0) -> Spool:
    spool = Spool(folder / "spool", 1 << 20)
    for number in range(since, since + count):
        assert spool.append(record(number))
    return spool


def test_records_are_collected_once_and_files_without_a_writer_go(tmp_path: Path) -> None:
    spool, collector = written(tmp_path, 3), collecting(tmp_path)
    assert collector.collect(wait=True)
    assert collector.collect(wait=True)
    assert spool.append(record(3))
    assert len(files(tmp_path / "spool")) == 1
    spool.close()
    assert collector.collect(wait=True)
    assert ids(tmp_path) == ["r0", "r1", "r2", "r3"]
    assert files(tmp_path / "spool") == []
    assert open_database(str(tmp_path / "usage")).execute("SELECT * FROM usage_spool") == []
    collector.close()


def test_many_records_are_collected_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1000)
    written(tmp_path, 100).close()
    collector = collecting(tmp_path)
    collector.collect(wait=True)
    assert ids(tmp_path) == [f"r{number}" for number in range(100)]
    collector.close()


@pytest.mark.parametrize("step", range(8))
def test_a_failure_at_any_statement_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 500)
    written(tmp_path, 10).close()
    opened: Any = module.open_database
    left = [step]

    class Failing:
        """A database whose statements fail from one on."""

        def __init__(self, address: str) -> None:
            self.inner = opened(address)
            self.transaction, self.close = self.inner.transaction, self.inner.close

        def _step(self) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise DatabaseError("pulled the plug")

        def execute(self, *words: Any) -> Any:
            self._step()
            return self.inner.execute(*words)

    collector = collecting(tmp_path)
    monkeypatch.setattr(module, "open_database", Failing)
    with pytest.raises(DatabaseError):
        collector.collect(wait=True)
    monkeypatch.setattr(module, "open_database", opened)
    collector.collect(wait=True)
    assert sorted(ids(tmp_path)) == [f"r{number}" for number in range(10)]
    collector.close()


def test_a_line_that_cannot_be_read_is_counted_and_holds_nothing_up(tmp_path: Path) -> None:
    spool = written(tmp_path, 2)
    with files(tmp_path / "spool")[0].open("ab") as file:
        file.write(b"\xff\x00 garbage\n[1,2]\n")
    assert spool.append(record(2))
    lost: list[int] = []
    collector = collecting(tmp_path, lost.append)
    with capture_logs() as logged:
        collector.collect(wait=True)
    assert ids(tmp_path) == ["r0", "r1", "r2"]
    assert sum(lost) == len(logged) == 2
    spool.close()
    collector.close()


def test_collectors_exclude_each_other(tmp_path: Path) -> None:
    spools = [written(tmp_path, 50, since=50 * number) for number in range(4)]
    collectors = [collecting(tmp_path) for _ in range(4)]
    threads = [threading.Thread(target=each.collect, kwargs={"wait": True}) for each in collectors for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(tmp_path)) == sorted(f"r{number}" for number in range(200))
    with collectors[0]._locked(wait=True):
        assert not collectors[1].collect(wait=False)
    for each in (*spools, *collectors):
        each.close()


def test_old_records_are_deleted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELETED", 3)
    written(tmp_path, 20).close()
    collector = collecting(tmp_path)
    collector.collect(wait=True)
    assert collector.delete_before(record(15).time_ms / 1000) == 15
    assert ids(tmp_path) == [f"r{number}" for number in range(15, 20)]
    collector.close()


def test_what_is_deleted_does_not_come_back_out_of_a_file_that_is_still_written(tmp_path: Path) -> None:
    spool, collector = written(tmp_path, 3), collecting(tmp_path)
    collector.collect(wait=True)
    assert collector.delete_before(1e10) == 3
    assert spool.append(record(3))
    collector.collect(wait=True)
    assert ids(tmp_path) == ["r3"]
    spool.close()
    collector.close()


def test_a_database_that_is_away_keeps_the_records_in_their_file(tmp_path: Path) -> None:
    (tmp_path / "usage").mkdir()
    written(tmp_path, 3).close()
    collector = collecting(tmp_path)
    with pytest.raises(DatabaseError):
        collector.collect(wait=True)
    (tmp_path / "usage").rmdir()
    collector.collect(wait=True)
    assert ids(tmp_path) == ["r0", "r1", "r2"]
    collector.close()


def test_a_folder_that_cannot_be_used_is_an_error_of_the_database(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")
    with pytest.raises(DatabaseError, match="spool"):
        collecting(tmp_path).collect(wait=True)


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    open_database(str(tmp_path / "usage")).close()
    with sqlite3.connect(tmp_path / "usage") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseError, match="99"):
        open_database(str(tmp_path / "usage"))
