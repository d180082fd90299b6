"""A successor that does not end: whoever stops it goes on."""

from __future__ import annotations

import os
import signal

import pytest

from gateway.process import successor
from gateway.process.successor import Successor


def _ignore_sigterm(descriptors: list[int]) -> None:
    """Be a successor that hangs while it starts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(descriptors[-1], b"hangs")
    signal.pause()


def test_a_successor_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successor, "_execute", _ignore_sigterm)
    monkeypatch.setattr(successor, "_STOP_TIMEOUT", 0.1)
    hung = Successor([])
    while hung.poll() == "starting" and not hung.why:
        pass
    hung.stop()
    with pytest.raises(ChildProcessError):
        os.waitpid(hung.pid, os.WNOHANG)
