"""A wait of the supervisor ends when there is something to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.process.wakeups import Wakeups

LONG = 60.0


@pytest.fixture
def wakeups() -> Iterator[Wakeups]:
    before = signal.getsignal(signal.SIGCHLD)
    made = Wakeups()
    yield made
    made.close()
    signal.signal(signal.SIGCHLD, before)


def test_the_end_of_a_child_ends_it(wakeups: Wakeups) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        began = time.monotonic()
        wakeups.wait(LONG, ())
        assert child.wait() == 0
    assert time.monotonic() - began < LONG


def test_a_signal_ends_it_even_if_it_came_before(wakeups: Wakeups) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: got.append(number))
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        began = time.monotonic()
        wakeups.wait(LONG, ())
        assert time.monotonic() - began < LONG
        assert got == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_source_ends_it(wakeups: Wakeups) -> None:
    reader, writer = os.pipe()
    timer = threading.Timer(0.01, os.write, (writer, b"x"))
    timer.start()
    began = time.monotonic()
    wakeups.wait(LONG, (reader,))
    assert time.monotonic() - began < LONG
    timer.join()
    os.close(reader)
    os.close(writer)


def test_without_anything_it_ends_in_time(wakeups: Wakeups) -> None:
    began = time.monotonic()
    wakeups.wait(0.02, ())
    wakeups.wait(0.02, ())  # nothing of the first one is left
    assert time.monotonic() - began >= 0.03


def test_closed_it_leaves_signals_alone() -> None:
    made = Wakeups()
    made.close()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
