"""Records on their way to the database survive the process that wrote them, within a bound."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.usage import spool
from gateway.usage.spool import Spool, files, has_writer, read_lines
from tests.gateway.usage.records import record

WRITER = """
import os, signal, sys
from pathlib import Path
from gateway.usage.spool import Spool
from tests.gateway.usage.records import record
spool = Spool(Path(sys.argv[1]), 1 << 20)
for number in range(100):
    spool.append(record(number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def lines(folder: Path) -> list[bytes]:
    return [line for path in files(folder) for line in path.read_bytes().splitlines(keepends=True)]


@pytest.mark.slow
def test_what_a_killed_process_has_appended_is_there(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(lines(tmp_path)) == 100
    assert not has_writer(*files(tmp_path))


def test_a_file_has_a_writer_until_it_is_closed(tmp_path: Path) -> None:
    writing = Spool(tmp_path, 1 << 20)
    assert writing.append(record())
    assert has_writer(*files(tmp_path))
    writing.close()
    assert not has_writer(*files(tmp_path))
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


def test_a_large_file_is_followed_by_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_LARGEST", 1000)
    writing = Spool(tmp_path, 1 << 20)
    for number in range(20):
        assert writing.append(record(number))
    assert len(files(tmp_path)) > 2
    assert [has_writer(path) for path in files(tmp_path)[-2:]] == [False, True]
    assert len(lines(tmp_path)) == 20
    writing.close()


def test_beyond_the_bound_records_are_lost_and_that_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_LARGEST", 500)
    monkeypatch.setattr(spool, "_BETWEEN_TRIES", 0.0)
    writing = Spool(tmp_path, 1500)
    with capture_logs() as logged:
        kept = [writing.append(record(number)) for number in range(20)]
        assert not all(kept)
        assert kept == sorted(kept, reverse=True)
        for path in files(tmp_path):
            path.unlink()  # as the collector does
        assert writing.append(record())
    assert [entry["event"] for entry in logged] == ["usage.lost", "usage.resumed"]
    assert logged[1]["lost"] == kept.count(False)
    writing.close()


def test_a_full_disk_leaves_no_cut_line(tmp_path: Path) -> None:
    """A limit of file sizes is what a full disk looks like: a part of a line is written, then nothing."""
    writing = Spool(tmp_path, 1 << 20)
    assert writing.append(record())
    size = files(tmp_path)[0].stat().st_size
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        assert not writing.append(record(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.stat(files(tmp_path)[0]).st_size == size
    assert writing.append(record(2))
    assert len(lines(tmp_path)) == 2
    writing.close()


def test_only_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one\ntwo\nthr")
    assert read_lines(path, 0, 5) == b"one\n"
    assert read_lines(path, 4, 100) == b"two\n"
    assert read_lines(path, 8, 100) == b""
    assert read_lines(path, 0, 2) == b"one\n"  # at least one
