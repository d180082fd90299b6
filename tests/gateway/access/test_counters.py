"""Counts in windows: what slides out, what a calendar ends, and what processes count together."""

from __future__ import annotations

from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from gateway.access.counters import RUNNING, CounterTable, name_of, spans

NAME, OTHER = name_of("requests", "a"), name_of("requests", "b")
NOW = datetime(2026, 1, 31, 23, 59, 30, tzinfo=UTC).timestamp()


def count(table: CounterTable, now: float, amount: float, window: str = "minute") -> float:
    span = spans(now)[window]
    row = table.row(NAME, span)
    table.total(row, span)
    table.add(row, span.tick, span, amount)
    return table.total(row, span)


@pytest.mark.parametrize(("window", "width"), [("minute", 1.0), ("hour", 60.0)])
def test_what_is_counted_slides_out_after_a_window(window: str, width: float) -> None:
    table = CounterTable(None, 64)
    assert [count(table, NOW + place * width, 1.0, window) for place in range(3)] == [1.0, 2.0, 3.0]
    assert count(table, NOW + 59 * width, 1.0, window) == 4.0
    assert count(table, NOW + 60 * width, 0.0, window) == 3.0
    assert count(table, NOW + 61 * width, 0.0, window) == 2.0
    assert count(table, NOW + 1000 * width, 0.0, window) == 0.0


@pytest.mark.parametrize("window", ["day", "month"])
def test_days_and_months_end_by_the_calendar(window: str) -> None:
    table = CounterTable(None, 64)
    assert count(table, NOW, 2.5, window) == 2.5
    assert count(table, NOW + 29, 0.25, window) == 2.75
    assert count(table, NOW + 31, 0.0, window) == 0.0


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    table = CounterTable(None, 64)
    count(table, NOW, 1.0)
    assert count(table, NOW - 20, 1.0) == 2.0


@pytest.mark.parametrize(("window", "width"), [("minute", 1.0), ("hour", 60.0)])
def test_a_clock_that_was_a_year_ahead_refuses_nobody_for_a_year(window: str, width: float) -> None:
    table = CounterTable(None, 64)
    for place in range(3):
        count(table, NOW + 365 * 86400 + place * width, 1.0, window)
    assert count(table, NOW, 1.0, window) == 4.0, "real time may have been short"
    assert count(table, NOW + 10 * width, 1.0, window) == 5.0
    assert count(table, NOW + 60 * width, 0.0, window) == 1.0
    assert count(table, NOW + 70 * width, 0.0, window) == 0.0


def test_the_time_until_enough_is_free() -> None:
    table = CounterTable(None, 64)
    for place in range(3):
        count(table, NOW + place, 1.0)
    span = spans(NOW + 10)["minute"]
    row = table.row(NAME, span)
    table.total(row, span)
    assert [table.seconds_until_free(row, span, amount, NOW + 10) for amount in (1, 2, 3)] == [50.0, 51.0, 52.0]


def test_a_full_table_gives_the_row_whose_window_ends_first() -> None:
    table = CounterTable(None, 1)
    span, minute = spans(NOW)["day"], spans(NOW)["minute"]
    assert table.row(NAME, minute) == table.row(OTHER, span), "the only row"
    assert table.total(table.row(OTHER, span), span) == 0.0


def test_a_column_is_cleared() -> None:
    table = CounterTable(None, 64)
    row = table.row(NAME, RUNNING)
    table.add(row, 3, RUNNING, 2.0)
    table.add(row, 4, RUNNING, 1.0)
    table.clear_column(3)
    assert table.total(row, RUNNING) == 1.0


def take(path: Path, times: int) -> None:
    table = CounterTable(path, 64)
    for _ in range(times):
        with table:
            count(table, NOW, 1.0)


@pytest.mark.slow
def test_processes_count_together(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    processes = [get_context("spawn").Process(target=take, args=(path, 2000)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert count(CounterTable(path, 64), NOW, 0.0) == 8000.0
