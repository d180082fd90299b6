"""Rows of requests: what they hold, that figures computed from them are the report's, and what becomes of the files."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.cli import main
from gateway.config import Config, Endpoint, Export, ServerSection
from gateway.experiments.metrics import FAILURES
from gateway.export.rows import Exporter, Row, read_rows
from gateway.storage.row_files import RowFiles
from tests.gateway.serving import chat, endpoint, figures, listening, running
from tests.missing_tools import missing

ARMS = endpoint(("a", "scripted", 50), ("b", "error-after-3", 50))


def application(folder: Path, *, text: bool = False, arms: Endpoint = ARMS) -> Any:
    config = Config(
        server=ServerSection(export=Export(folder=str(folder), text=text)),
        backends={"s": {"kind": "scripted"}},
        endpoints={"chat": arms},
    )
    return create_app(config, {"s": ScriptedBackend("s")})


async def exported(
    folder: Path, *, text: bool = False, requests: int = 40, arms: Endpoint = ARMS
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of some requests, and the experiment's figures."""
    async with running(application(folder, text=text, arms=arms)) as client:
        for user in range(requests):
            await chat(client, user=f"user {user}", stream=user % 3 == 0, temperature=0)
        await chat(client, model="chat:a", temperature=0)
        await chat(client, model="no such model")
        found = await figures(client)
    return list(read_rows(folder)), found


@pytest.mark.slow
async def test_figures_computed_from_rows_are_the_reports(tmp_path: Path) -> None:
    """For an arm that answers, one whose failures another arm repairs, and one that refuses every request."""
    arms = endpoint(("a", "scripted", 40), ("b", "error", 30), ("c", "context-length", 30))
    rows, found = await exported(tmp_path / "export", arms=arms, requests=60)
    for name, arm in found.items():
        compared = [row for row in rows if row.assigned == name and row.compared]
        ok = [row for row in compared if row.arm_outcome == "ok"]
        failed = [row for row in compared if row.arm_outcome in FAILURES]
        figures = {
            "refused": [row not in ok + failed for row in compared],
            "abandoned": [row.outcome == "client_gone" for row in compared],
            "success": [row in ok for row in ok + failed],
            "served": [row.outcome == "ok" for row in ok + failed],
            "latency": [row.latency for row in ok],
            "time_to_first_token": [row.time_to_first_token for row in ok if row.time_to_first_token is not None],
            "prompt_tokens": [row.prompt_tokens for row in ok],
            "completion_tokens": [row.completion_tokens for row in ok],
        }
        assert arm["exposures"] == len(compared) > 5
        for metric, values in figures.items():
            # Equal but for the order of a sum.
            assert arm["means"].get(metric, "none") == (pytest.approx(fmean(values), rel=1e-12) if values else "none")
    assert found["b"]["means"] | {"success": 0.0, "served": 1.0} == found["b"]["means"]
    assert found["c"]["means"]["refused"] == 1.0


@pytest.mark.slow
async def test_what_a_row_holds(tmp_path: Path) -> None:
    rows, _ = await exported(tmp_path)
    assert len(rows) == 41  # the model that does not exist has no endpoint, so it has no row
    assert [row.timestamp_ms for row in rows] == sorted(row.timestamp_ms for row in rows)
    (direct,) = (row for row in rows if row.assigned is None)
    assert (direct.served_entity, direct.unit, direct.bucket) == ("a", None, None)
    of_b = next(row for row in rows if row.assigned == "b")
    assert (of_b.outcome, of_b.completion_tokens, of_b.request_metadata["model_name"]) == ("backend_failed", None, "b")
    of_a = next(row for row in rows if row.assigned == "a")
    assert (of_a.status_code, of_a.finish_reasons, of_a.config_version) == (200, ("eos",), 1)
    assert of_a.execution_time_ms == round(of_a.latency * 1000)
    assert (of_a.unit_source, len(of_a.unit or "")) == ("user", 16)
    assert "user 0" not in str(rows)


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
async def test_texts_are_exported_only_if_allowed(text: bool, tmp_path: Path) -> None:
    rows, _ = await exported(tmp_path, text=text, requests=6)
    answered = [row for row in rows if row.outcome == "ok"]
    assert answered
    for row in answered:
        assert (row.request is not None) == (row.response is not None) == text
        if text:
            assert json.loads(row.request or "")["messages"] == [{"role": "user", "content": "Hi"}]
            assert json.loads(row.response or "")["choices"][0]["text"].startswith("The quick brown fox")


def test_the_folder_is_bounded_and_rows_are_whole(tmp_path: Path, row: Callable[[int], Row]) -> None:
    exporters = [Exporter(RowFiles(tmp_path, name, 2000, 5), lambda _: None, with_text=False) for name in "xy"]
    for exporter in exporters:
        for number in range(100):
            exporter.put(row(number))
            exporter._write()
        exporter.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    assert all(file.stat().st_size < 3000 for file in files)
    assert len(list(read_rows(tmp_path))) > 10


def test_rows_that_cannot_be_written_are_counted(tmp_path: Path, row: Callable[[int], Row]) -> None:
    lost: list[int] = []
    files = RowFiles(tmp_path / "export", "x", 2000, 5)
    (tmp_path / "export").rmdir()
    exporter = Exporter(files, lost.append, with_text=False)
    exporter.put(row(0))
    exporter.close()
    assert sum(lost) == 1


def test_a_line_that_was_cut_is_left_out_and_another_is_named(tmp_path: Path, row: Callable[[int], Row]) -> None:
    exporter = Exporter(RowFiles(tmp_path, "x", 10**6, 5), lambda _: None, with_text=False)
    exporter.put(row(1))
    exporter.close()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    assert len(list(read_rows(tmp_path))) == 1
    file.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(ValueError, match=r":1: is no row of an export"):
        list(read_rows(tmp_path))


@pytest.fixture
def row() -> Callable[[int], Row]:
    def make(number: int, endpoint: str = "chat") -> Row:
        # 2026-01-01 and so many hours.
        time = 1_767_225_600_000 + number * 3_600_000
        served = (1.0, {"model_name": "a"}, endpoint, "a", "a", True, "ok", "ok", False, ("eos",))
        figures = (3, 5, 0.5, 1.0, "user", "00ff", 7, 1)
        return Row(f"id-{number}", None, "2026-01-01", time, 200, 1000, None, None, *served, *figures)

    return make


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(main, ["experiment", *map(str, words)])


def test_the_command_writes_an_endpoint_and_a_range_of_time(tmp_path: Path, row: Any) -> None:
    exporter = Exporter(RowFiles(tmp_path / "export", "x", 10**6, 5), lambda _: None, with_text=False)
    for number in (3, 1, 2):
        exporter.put(row(number))
        exporter.put(row(number, "other"))
    exporter.close()
    out = tmp_path / "out.jsonl"
    range = ("--since", "2026-01-01 02:00:00", "--until", "2026-01-01 04:00:00")
    result = run("export", tmp_path / "export", "--endpoint", "chat", *range, "--out", out)
    assert (result.exit_code, result.output) == (0, f"2 requests in {out}\n")
    assert [each.databricks_request_id for each in read_rows(out)] == ["id-2", "id-3"]


@pytest.mark.slow
def test_parquet_has_every_column_with_its_type(tmp_path: Path, row: Callable[[int], Row]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason=missing("pyarrow"))
    (tmp_path / "rows.jsonl").write_bytes(msgspec.json.Encoder().encode_lines([row(number) for number in range(3)]))
    result = run("export", tmp_path / "rows.jsonl", "--format", "parquet", "--out", tmp_path / "rows")
    assert result.output.startswith("3 requests")
    table = parquet.read_table(tmp_path / "rows")
    assert table.column_names == list(Row.__struct_fields__)
    assert str(table.schema.field("client_request_id").type) == "string"  # although all are null
    assert str(table.schema.field("timestamp_ms").type) == "int64"
    assert table.to_pylist()[1]["databricks_request_id"] == "id-1"
    assert dict(table.to_pylist()[1]["request_metadata"]) == {"model_name": "a"}


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("export", tmp_path, "--format", "parquet", "--out", tmp_path / "x.parquet")
    assert (result.exit_code, "install interlingua[parquet]" in result.output) == (1, True)


async def replayed(*words: str | Path) -> tuple[int, str]:
    """The command as a process of its own: its exit code and what it prints."""
    command = [sys.executable, "-m", "gateway.cli", "experiment", "replay", *map(str, words)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.slow
async def test_a_replay_compares_the_logged_answers_with_those_of_an_arm(tmp_path: Path) -> None:
    rows, _ = await exported(tmp_path / "export", text=True, requests=30)
    async with listening(application(tmp_path / "other")) as port:
        words = (tmp_path / "export", "--endpoint", "chat", "--url", f"http://127.0.0.1:{port}")
        code, alike = await replayed(*words, "--against", "a", "--out", tmp_path / "answers")
        _, worse = await replayed(*words, "--against", "b")
    first, *lines = alike.splitlines()
    assert (code, first) == (0, f"{len(rows)} requests on chat:a")
    (identical,) = [line.split() for line in lines if line.startswith("  identical answers")]
    assert identical[2] == "1"
    assert len((tmp_path / "answers").read_bytes().splitlines()) == len(rows)
    # A failure before a stream has begun has a status of its own, 502.
    (failed,) = [line.removeprefix("  failed: ") for line in worse.splitlines() if line.startswith("  failed: ")]
    counts = dict(each.split() for each in failed.split(", "))
    assert counts.keys() <= {"backend_failed", "backend_unavailable"}
    assert sum(map(int, counts.values())) == len(rows)


@pytest.mark.slow
async def test_a_replay_needs_texts_and_a_server(tmp_path: Path) -> None:
    await exported(tmp_path / "export", requests=3)
    words = (tmp_path / "export", "--endpoint", "chat", "--against")
    async with listening(application(tmp_path / "other")) as port:
        code, output = await replayed(*words, f"http://127.0.0.1:{port}")
    assert (code, "no request of 'chat' can be replayed (no text: 4)" in output) == (1, True)
    code, output = await replayed(*words, "http://127.0.0.1:1")
    assert (code, "Error: http://127.0.0.1:1: " in output, "Traceback" in output) == (1, True, False)
