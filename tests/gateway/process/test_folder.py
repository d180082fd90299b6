"""The folder of a supervisor's processes: removed by the next one if its supervisor was killed, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.process.folder import SharedFolder
from tests.gateway.processes import state

OWNER = """
import os, signal, subprocess, sys, tempfile
tempfile.tempdir = sys.argv[1]
from gateway.process.folder import SharedFolder
folder = SharedFolder()
(folder.path / "responses").write_text("a prompt")
worker = subprocess.Popen(["sleep", "60"], pass_fds=(folder.lock,), stdout=subprocess.DEVNULL)
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_folder_in_use_stays_and_goes_with_its_owner(tmp_path: Path) -> None:
    one, other = SharedFolder(), SharedFolder()
    assert one.path.is_dir()
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_supervisor_left_is_removed_once_its_workers_have_ended(tmp_path: Path) -> None:
    owner = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    worker = int(owner.stdout)
    (left,) = tmp_path.iterdir()
    SharedFolder().remove()
    assert (left / "responses").exists(), "a worker still finishes its streams"
    os.kill(worker, 9)
    while left.exists():  # until the kernel has closed the worker's descriptors
        SharedFolder().remove()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "interlingua-unlocked").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "lock").touch()
    (tmp_path / "interlingua-link").symlink_to(elsewhere)
    SharedFolder().remove()
    assert {path.name for path in tmp_path.iterdir()} == {"interlingua-unlocked", "interlingua-link", "elsewhere"}


@pytest.mark.slow
def test_a_supervisor_that_stops_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    owner = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    worker = int(owner.stdout)
    following = SharedFolder()
    assert len(list(tmp_path.iterdir())) == 2
    os.kill(worker, 9)
    while state(worker) not in ("", "Z"):  # its descriptors are closed by then
        pass
    following.remove()
    assert list(tmp_path.iterdir()) == []
