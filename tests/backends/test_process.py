"""Supervised processes: restart, back-off, forgiveness, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.process import BackOff, SupervisedProcess, is_stopped, start_bound_to_parent, stop

BACK_OFF = BackOff(first=0.0, step=0.5, longest=2.0, forgiven_after=5.0)
ENDS, LASTS = "", "import time; time.sleep(60)"
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""

Starter = Callable[..., SupervisedProcess]


@pytest.fixture
def started() -> Iterator[Starter]:
    """Start a supervised process that runs the given programs in turn, and the last one ever after."""
    made: list[SupervisedProcess] = []

    def make(*programs: str, back_off: BackOff = BACK_OFF, exits: list[int] | None = None) -> SupervisedProcess:
        rest = list(programs)

        def start() -> subprocess.Popen[bytes]:
            program = rest.pop(0) if len(rest) > 1 else rest[0]
            if program == "fails":
                raise BlockingIOError("no more processes")
            return subprocess.Popen([sys.executable, "-S", "-c", program])

        made.append(SupervisedProcess("it", start, back_off, exits.append if exits is not None else lambda _: None))
        return made[-1]

    yield make
    stop(made, 0.0)


def restart_delay(process: SupervisedProcess, now: float) -> float:
    """Let the process end at `now`; return how long after that it is started again, in steps of 0.125 s."""
    process.process.wait(60)
    process.poll(now)
    delay = 0.0
    while process._start_at is not None:
        process.poll(now + delay)
        delay += 0.125
    return max(0.0, delay - 0.125)


def test_the_delay_doubles_up_to_its_limit(started: Starter) -> None:
    process, now = started(ENDS), time.monotonic()
    delays = []
    for _ in range(6):
        delays.append(restart_delay(process, now))
        now += delays[-1]
    assert delays == [0.0, 0.5, 1.0, 2.0, 2.0, 2.0]


def test_a_first_delay_is_doubled(started: Starter) -> None:
    process, now = started(ENDS, back_off=BackOff(first=0.5, longest=10.0)), time.monotonic()
    delays = []
    for _ in range(3):
        delays.append(restart_delay(process, now))
        now += delays[-1]
    assert delays == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(("lasted", "delay"), [(4.9, 2.0), (5.1, 0.0)])
def test_a_process_that_lasted_is_forgiven(started: Starter, lasted: float, delay: float) -> None:
    process, now = started(ENDS), time.monotonic()
    for _ in range(4):
        now += restart_delay(process, now)
    assert restart_delay(process, now + lasted) == delay
    assert restart_delay(process, now + lasted + delay) == (0.5 if delay == 0.0 else 2.0)


def test_a_process_that_cannot_be_started_again_is_tried_later(started: Starter) -> None:
    process, now = started(ENDS, "fails", LASTS), time.monotonic()
    process.process.wait(60)
    process.poll(now)
    process.poll(now)
    assert process.ended
    process.poll(now + 1.0)
    assert process.ended
    process.poll(now + 2.0)
    assert not process.ended
    assert process.process.poll() is None


def test_an_exit_is_reported_once(started: Starter) -> None:
    exits: list[int] = []
    process = started("raise SystemExit(3)", LASTS, exits=exits)
    process.process.wait(60)
    now = time.monotonic()
    for _ in range(3):
        process.poll(now)
    assert exits == [3]
    assert not process.ended


def test_a_process_that_is_stopped_for_long_is_killed(started: Starter) -> None:
    process = started(LASTS)
    now = time.monotonic()
    for at in (0.0, 100.0):  # the time begins anew once it has gone on
        process.process.send_signal(signal.SIGSTOP)
        while not is_stopped(process.process):
            time.sleep(0.001)
        for seconds in (0.0, 59.0):
            process.poll(now + at + seconds)
        assert process.process.poll() is None
        if not at:
            process.process.send_signal(signal.SIGCONT)
            while is_stopped(process.process):
                time.sleep(0.001)
            process.poll(now + 60.0)
    process.poll(now + 161.0)
    assert process.process.wait(60) == -signal.SIGKILL


def test_a_process_that_ends_while_it_is_asked_after_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ENDS])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as patched:
        patched.setattr(process, "poll", lambda: None)  # as it answered a moment before the end
        assert not is_stopped(process)
    assert process.wait(60) == 0


def test_stopping_sends_sigterm(started: Starter) -> None:
    process = started(LASTS)
    stop([process], 60.0)
    assert process.process.returncode == -15


@pytest.mark.slow
def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", STUBBORN, str(tmp_path / "ready")]
    process = SupervisedProcess("it", lambda: start_bound_to_parent(command), BACK_OFF)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    began = time.monotonic()
    stop([process], 0.2)
    assert process.process.returncode == -9
    assert time.monotonic() - began >= 0.2


def test_stopping_a_process_that_has_ended_does_nothing(started: Starter) -> None:
    process = started(ENDS)
    process.process.wait(60)
    stop([process], 0.0)
    process.signal(15)
    assert process.process.returncode == 0


PARENT = """
import sys, time
from backends.process import start_bound_to_parent
child = start_bound_to_parent([sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_bound_process_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline() for _ in range(2)}
        pid = int(max(lines - {b"up\n"}))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 30
        while _runs(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


# What the first process of a container sees: its id is 1, and so its children's parent.
FIRST_OF_A_CONTAINER = """
import ctypes, os, sys
os.getpid = os.getppid = lambda: 1
from backends.process import start_bound_to_parent
def loader(*_): raise AssertionError("the loader's lock may be another thread's")
ctypes.CDLL = loader
sys.exit(start_bound_to_parent([sys.executable, "-S", "-c", "raise SystemExit(7)"]).wait(60))
"""


def test_the_first_process_of_a_container_has_children_and_loads_nothing_between_fork_and_exec() -> None:
    assert subprocess.run([sys.executable, "-c", FIRST_OF_A_CONTAINER], check=False).returncode == 7


def test_a_process_whose_parent_has_ended_before_it_was_bound_ends() -> None:
    program = "import signal; from backends.process import signal_at_parents_end as bind; bind(signal.SIGKILL, 1)"
    assert subprocess.run([sys.executable, "-c", f"{program}; raise SystemExit(7)"], check=False).returncode == 1


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
