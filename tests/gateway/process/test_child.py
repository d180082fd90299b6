"""A child that ends is started again, even if that fails at first."""

from __future__ import annotations

import subprocess
import sys

from gateway.process.child import Child, end


def test_a_child_that_cannot_be_started_again_is_tried_later() -> None:
    starts: list[str] = ["ends", "fails", "lasts"]

    def start() -> subprocess.Popen[bytes]:
        how = starts.pop(0)
        if how == "fails":
            raise BlockingIOError("no more processes")
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)" if how == "lasts" else ""])

    child = Child("it", start, longest_delay=2.0)
    assert child.process.wait(60) == 0
    now = child.began
    child.tend(now)
    child.tend(now)
    assert child.ended
    assert starts == ["lasts"]
    child.tend(now + 1.0)
    assert starts == ["lasts"]
    child.tend(now + 2.0)
    assert starts == []
    assert not child.ended
    end([child], 60)
