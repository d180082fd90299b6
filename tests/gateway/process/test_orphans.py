"""Process 1 of a container reaps what is left to it, and nothing that somebody waits for."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import pytest

from gateway.process.orphans import reap_orphans

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>: orphans of this process's descendants are given to it
_ORPHAN = "import os, sys; print(os.fork() or os._exit(0), flush=True); sys.stdin.read()"


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].startswith("Z")


def _in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be process 1 in all that the function looks at, with an orphan and a child that both have ended."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    parent = subprocess.Popen(
        [sys.executable, "-c", _ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    own = subprocess.Popen(["false"], start_new_session=True)
    parent.stdin.close()
    parent.wait()
    while not (_is_zombie(orphan) and _is_zombie(own.pid)):
        time.sleep(0.01)
    reap_orphans()  # either first
    assert own.wait() == 1
    reap_orphans()
    with pytest.raises(FileNotFoundError):
        _is_zombie(orphan)


def test_orphans_are_reaped_and_own_children_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if (child := os.fork()) == 0:
        try:
            _in_a_process(monkeypatch)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
