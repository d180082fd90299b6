"""The command `gateway usage`: sums and records as tables and files, and their deletion."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.usage.record import hashed
from gateway.usage.spool import Spool
from tests.gateway.usage.records import RECORD, record
from tests.missing_tools import missing

SINCE = ("--since", "2023-11-01", "--until", "2023-12-01")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database, most of whose records are still in a file that waits."""
    spool = Spool(tmp_path / "usage.sqlite3.spool", 1 << 20)
    for number in range(5):
        spool.append(record(number, key="a" if number < 2 else "b", user=hashed("alice") if number else None))
    spool.close()
    (tmp_path / "usage.sqlite3").touch()
    return tmp_path / "usage.sqlite3"


def run(database: Path, *words: str, typed: str = "") -> Any:
    return CliRunner().invoke(main, ["usage", "--database", str(database), *words], input=typed)


def test_a_table_of_groups(database: Path) -> None:
    result = run(database, *SINCE, "--by", "key")
    assert [line.split() for line in result.output.splitlines()] == [
        [
            "key",
            "requests",
            "succeeded",
            "prompt_tokens",
            "cached_tokens",
            "completion_tokens",
            "reasoning_tokens",
            "cost",
        ],
        ["a", "2", "2", "20", "0", "10", "0", "0.000009000"],
        ["b", "3", "3", "30", "0", "15", "0", "0.000013500"],
    ]


def test_other_forms_say_the_same(database: Path, tmp_path: Path) -> None:
    by_key = (*SINCE, "--by", "key")
    lines = [json.loads(line) for line in run(database, *by_key, "--format", "json").output.splitlines()]
    rows = list(csv.DictReader(io.StringIO(run(database, *by_key, "--format", "csv").output)))
    assert [(line["key"], line["requests"], f"{line['cost']:.9f}") for line in lines] == [
        (row["key"], int(row["requests"]), row["cost"]) for row in rows
    ]
    records = run(database, *SINCE, "--records", "--limit", "2", "--format", "json").output.splitlines()
    assert [json.loads(line)["request_id"] for line in records] == ["r4", "r3"]


@pytest.mark.slow
def test_parquet_needs_a_file(database: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason=missing("pyarrow"))
    assert run(database, "--format", "parquet").exit_code == 2
    result = run(database, *SINCE, "--format", "parquet", "--records", "--out", str(tmp_path / "x"))
    assert result.exit_code == 0, result.output
    assert parquet.read_table(tmp_path / "x").num_rows == 5


def test_filters(database: Path) -> None:
    found = run(database, *SINCE, "--where", "key=b", "--where", "user=alice", "--format", "json").output
    assert json.loads(found)["requests"] == 3
    assert run(database, "--where", "nonsense=1").exit_code == 2


@pytest.mark.parametrize(
    "words", [("--since", "99999999999999999w"), ("--until", f"{'9' * 5000}h"), ("--limit", "9999999999999999999")]
)
def test_numbers_that_are_too_large_are_refused(database: Path, words: tuple[str, ...]) -> None:
    for more in ((), ("--records",)):
        result = run(database, *words, *more)
        assert (result.exit_code, "Usage: " in result.output) == (2, True), result.output
    assert run(database, "--since", "9999w").exit_code == 0


def test_the_configuration_names_the_database(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[backends.s]\nkind = "scripted"\n[usage]\ndatabase = "{database}"\n')
    result = CliRunner().invoke(main, ["usage", "--config", str(file), *SINCE, "--format", "json"])
    assert json.loads(result.output)["requests"] == 5


def test_a_database_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    result = run(tmp_path / "nothing")
    assert (result.exit_code, "--database" in result.output) == (1, True)
    assert not (tmp_path / "nothing").exists()


def test_reset_deletes_what_is_older(database: Path) -> None:
    before = str(RECORD.time_ms // 1000 + 2)
    assert run(database, "reset", "--yes", "--before", before).exit_code == 2  # no Unix time: it could be a year
    assert run(database, "reset", "--yes", "--before", "2023-11-14T22:13:22").output == "2 records deleted\n"
    assert run(database, "reset", typed="n\n").exit_code == 1
    assert run(database, "reset", "--yes").output == "3 records deleted\n"
