"""What the supervisor does when processes end, without a gateway around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from backends.process import BackOff, SupervisedProcess, stop
from gateway.config import Config, ServerSection
from gateway.process.supervisor import Generation, Supervisor


@contextmanager
def child(code: str) -> Iterator[SupervisedProcess]:
    made = SupervisedProcess("it", lambda: subprocess.Popen([sys.executable, "-c", code]), BackOff())
    try:
        yield made
    finally:
        stop([made], 60)


def test_an_engine_that_dies_during_a_reload_does_not_stop_the_reload() -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    command = ("engine",)
    with child("") as engine, child("import time; time.sleep(60)") as worker:
        engine.process.wait(60)
        now = Generation(config, {command: engine}, [])
        supervisor._next = Generation(config, {command: engine}, [worker])
        assert supervisor._take_over(now) is now
        assert supervisor._next is not None, "the engine is started again, as it would be without a reload"
        supervisor._next.engines = {("another",): engine}
        supervisor._take_over(now)
        assert supervisor._next is None, "one that is new must come up"
    for listener in supervisor._sockets:
        listener.close()
    supervisor._folder.cleanup()
