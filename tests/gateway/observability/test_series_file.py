"""Files of time series: read by all workers, continued by the worker that takes a dead one's slot."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.observability import series_file
from gateway.observability.series_file import SeriesFile

KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.observability.series_file import SeriesFile

file = SeriesFile(Path(sys.argv[1]), "0")
file.series("requests", ("a",), 1)[0] += 2.0
file.series("seconds", ("a", "b"), 3)[2] += 0.5
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path) -> None:
    """A worker counts in slot 0, and is killed."""
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False, timeout=60)


@pytest.mark.slow
def test_what_a_killed_worker_counted_stays_in_the_sums(tmp_path: Path) -> None:
    killed(tmp_path)
    other = SeriesFile(tmp_path, "1")
    other.series("requests", ("b",), 1)[0] += 1.0
    expected = {"requests": {("a",): [2.0], ("b",): [1.0]}, "seconds": {("a", "b"): [0.0, 0.0, 0.5]}}
    assert other.read() == expected
    assert other.read(living=True) == {"requests": {("b",): [1.0]}}
    killed(tmp_path)
    expected = {"requests": {("a",): [4.0], ("b",): [1.0]}, "seconds": {("a", "b"): [0.0, 0.0, 1.0]}}
    assert other.read() == expected


def test_two_that_ask_at_once_whether_a_worker_lives_do_not_see_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, index = SeriesFile(tmp_path, "0"), tmp_path / "0.index"
    assert series_file._is_locked(index)
    gone.close()
    flock, others = fcntl.flock, list[bool | None]()

    def interrupted(file: int, operation: int) -> None:
        flock(file, operation)
        if not others:
            others.append(None)
            others.append(series_file._is_locked(index))  # another worker, while this one has the answer

    monkeypatch.setattr(fcntl, "flock", interrupted)
    assert not series_file._is_locked(index)
    assert others == [None, False]


def test_a_series_is_the_same_when_asked_for_again(tmp_path: Path) -> None:
    for file in (SeriesFile(), SeriesFile(tmp_path)):
        file.series("requests", ("a",), 1)[0] += 1.0
        file.series("requests", ("a",), 1)[0] += 1.0
        assert file.read() == file.read(living=True) == {"requests": {("a",): [2.0]}}


@pytest.mark.slow
def test_a_line_that_a_killed_worker_left_unfinished_is_dropped(tmp_path: Path) -> None:
    killed(tmp_path)
    with (tmp_path / "0.index").open("ab") as index:
        index.write(b'["tokens",1')
    other = SeriesFile(tmp_path, "1")
    assert set(other.read()) == {"requests", "seconds"}
    successor = SeriesFile(tmp_path, "0")
    successor.series("tokens", (), 1)[0] = 7.0
    assert other.read()["tokens"] == {(): [7.0]}
    assert other.read()["requests"] == {("a",): [2.0]}


def test_a_closed_file_takes_no_new_series(tmp_path: Path) -> None:
    file = SeriesFile(tmp_path, "0")
    file.series("requests", ("a",), 1)[0] += 1.0
    file.close()
    file.series("requests", ("a",), 1)[0] += 1.0
    file.series("requests", ("b",), 1)[0] += 1.0
    successor = SeriesFile(tmp_path, "0")
    successor.series("requests", ("c",), 1)
    assert successor.read() == {"requests": {("a",): [2.0], ("c",): [0.0]}}


def test_a_file_without_room_counts_no_further_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_file, "_CELLS", 2)
    file = SeriesFile(tmp_path)
    for label in "abc":
        file.series("requests", (label,), 1)[0] += 1.0
    assert file.read() == {"requests": {("a",): [1.0], ("b",): [1.0]}}
