"""A process in waiting takes the place of one that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.process import BackOff, is_stopped, stop
from backends.standby import WarmProcess
from tests.gateway.processes import alive

PROGRAM = """
import os, pathlib, sys, time
if sys.stdin.readline():
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def warm(calls: Path, program: str = PROGRAM, settling: float = 0.0) -> tuple[WarmProcess, list[int]]:
    """A process that notes its number in a folder once it is called, and the numbers of all that were started."""
    pids: list[int] = []

    def start(*, stdin: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", program, str(calls)], stdin=stdin)
        pids.append(process.pid)
        return process

    return WarmProcess("p", start, BackOff(), settling=settling), pids


def called(calls: Path) -> list[int]:
    return sorted(int(each.name) for each in calls.iterdir())


@pytest.mark.slow
def test_the_process_in_waiting_takes_over_and_another_one_waits(tmp_path: Path) -> None:
    process, pids = warm(tmp_path)
    until(lambda: called(tmp_path) == pids[:1])
    process.poll(time.monotonic())
    process.process.kill()
    process.process.wait()
    while process.ended:
        process.poll(time.monotonic())
    assert process.process.pid == pids[1]
    until(lambda: called(tmp_path) == sorted(pids[:2]))
    process.poll(time.monotonic())
    assert len(pids) == 3
    stop([process], 5.0)
    assert not any(map(alive, pids))
    assert len(called(tmp_path)) == 2


@pytest.mark.slow
def test_one_that_is_stopped_is_neither_called_nor_kept(tmp_path: Path) -> None:
    process, pids = warm(tmp_path)
    until(lambda: called(tmp_path) == pids[:1])
    process.poll(time.monotonic())
    os.kill(pids[1], signal.SIGSTOP)
    until(lambda: is_stopped(process._waiting))  # type: ignore[arg-type]
    process.poll(time.monotonic())
    assert len(pids) == 3, "another one waits in its place"
    os.kill(pids[2], signal.SIGSTOP)
    until(lambda: is_stopped(process._waiting))  # type: ignore[arg-type]
    process.process.kill()
    process.process.wait()
    while process.ended:
        process.poll(time.monotonic())
    assert process.process.pid == pids[3]
    until(lambda: called(tmp_path) == sorted([pids[0], pids[3]]))
    stop([process], 5.0)
    assert not any(map(alive, pids))


def test_one_that_cannot_wait_is_not_started_again_at_once(tmp_path: Path) -> None:
    process, pids = warm(tmp_path, "import sys, time; sys.stdin.readline(); time.sleep(60)", settling=30.0)
    now = time.monotonic()
    for seconds in (0.0, 10.0, 31.0, 31.1, 32.0):
        process.poll(now + seconds)
    assert len(pids) == 2
    subprocess.run(["kill", str(pids[1])], check=True)
    until(lambda: not alive(pids[1]))
    process.poll(now + 40.0)
    assert len(pids) == 2
    process.poll(now + 62.0)
    assert len(pids) == 3
    stop([process], 5.0)
    assert not any(map(alive, pids))


def test_one_that_ends_when_it_is_called_is_noticed_and_not_an_error(tmp_path: Path) -> None:
    def start(*, stdin: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"], stdin=stdin)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # between its start and its call
        return process

    exits: list[int] = []
    process = WarmProcess("p", start, BackOff(), exits.append)
    process.poll(time.monotonic())
    assert exits == [3]
    stop([process], 5.0)


def test_a_process_runs_on_if_none_can_be_made_to_wait(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*, stdin: int) -> subprocess.Popen[bytes]:
        if len(started) == 1:
            started.append(started[0])
            raise BlockingIOError("no more processes")
        started.append(subprocess.Popen([sys.executable, "-S", "-c", PROGRAM, str(tmp_path)], stdin=stdin))
        return started[-1]

    process, now = WarmProcess("p", start, BackOff(), settling=5.0), time.monotonic()
    for seconds in (6.0, 7.0):
        process.poll(now + seconds)
    assert not process.ended
    assert len(started) == 2, "not tried again at once"
    process.poll(now + 12.0)
    assert len(started) == 3
    stop([process], 5.0)
    assert not any(alive(each.pid) for each in started)
