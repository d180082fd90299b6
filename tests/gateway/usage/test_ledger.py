"""The ledger collects by itself, waits for a database that is away, and deletes what is old."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config import ServerSection, UsageSection
from gateway.usage import ledger as module
from gateway.usage.database import open_database
from gateway.usage.ledger import Ledger
from gateway.usage.spool import files
from tests.gateway.usage.records import record

pytestmark = pytest.mark.usefixtures("_closed_databases")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    monkeypatch.setattr(module, "_LONGEST_DELAY", 0.02)


def making(folder: Path, lost: Callable[[int], None] = lambda _: None, **settings: Any) -> Ledger:
    ledger = Ledger(UsageSection(database=str(folder / "usage"), **settings), ServerSection(), lost)
    ledger.start()
    return ledger


def recorded(folder: Path) -> int:
    database = open_database(str(folder / "usage"))
    try:
        return int(database.execute("SELECT COUNT(*) FROM usage_record")[0][0])
    finally:
        database.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def now() -> int:
    return int(time.time() * 1000)


def test_a_record_is_collected_by_itself_and_at_the_end(tmp_path: Path) -> None:
    ledger = making(tmp_path)
    ledger.put(record(time_ms=now()))
    until(lambda: recorded(tmp_path) == 1)
    ledger.put(record(time_ms=now()))
    ledger.close()
    assert recorded(tmp_path) == 2
    assert files(tmp_path / "usage.spool") == []


def test_a_record_that_is_kept_while_others_are_collected_is_collected_next(tmp_path: Path) -> None:
    ledger = Ledger(UsageSection(database=str(tmp_path / "usage")), ServerSection(), lambda _: None)
    collect, collected = ledger._collector.collect, 0

    def during(*, wait: bool) -> bool:
        nonlocal collected
        done = collect(wait=wait)
        collected += 1
        if collected == 1:
            ledger.put(record(time_ms=now()))  # its file has just been read
        return done

    ledger._collector.collect = during  # type: ignore[method-assign]
    ledger.start()
    until(lambda: collected > 1)
    ledger._collector.collect = collect  # type: ignore[method-assign]
    until(lambda: recorded(tmp_path) == 1)
    ledger.close()


def test_what_a_killed_process_has_left_is_collected_at_the_next_start(tmp_path: Path) -> None:
    left = Ledger(UsageSection(database=str(tmp_path / "usage")), ServerSection(), lambda _: None)
    left.put(record(time_ms=now()))
    left._spool.close()  # as the kernel does
    ledger = making(tmp_path)
    until(lambda: recorded(tmp_path) == 1)
    ledger.close()


def test_an_absence_of_the_database_is_logged_once_and_then_its_end(tmp_path: Path) -> None:
    (tmp_path / "usage").mkdir()
    with capture_logs() as logged:
        ledger = making(tmp_path)
        ledger.put(record(time_ms=now()))
        until(lambda: bool(logged))
        time.sleep(0.1)  # some more tries
        (tmp_path / "usage").rmdir()
        until(lambda: len(logged) > 1)
        ledger.close()
    assert [entry["event"] for entry in logged] == ["usage.delayed", "usage.caught_up"]
    assert recorded(tmp_path) == 1


def test_records_older_than_the_retention_go(tmp_path: Path) -> None:
    ledger = making(tmp_path, retention="1h")
    ledger.put(record(time_ms=now() - 2 * 3600_000))
    ledger.put(record(time_ms=now()))
    ledger.close()
    assert recorded(tmp_path) == 2
    ledger = making(tmp_path, retention="1h")
    until(lambda: recorded(tmp_path) == 1)
    ledger.close()


def test_lost_records_are_counted(tmp_path: Path) -> None:
    (tmp_path / "usage.spool").write_text("a file where the folder should be")
    lost: list[int] = []
    ledger = making(tmp_path, lost.append)
    ledger.put(record())
    ledger.put(record())
    ledger.close()
    assert lost == [0, 1, 1]
