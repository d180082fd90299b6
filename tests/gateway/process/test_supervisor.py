"""What the supervisor makes of its children's ends, without a gateway around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import Config, ServerSection
from gateway.process.child import Child, end
from gateway.process.supervisor import Running, Supervisor


@contextmanager
def child(code: str) -> Iterator[Child]:
    made = Child("it", lambda: subprocess.Popen([sys.executable, "-c", code]), longest_delay=2.0)
    try:
        yield made
    finally:
        end([made], 60)


def test_an_engine_that_dies_in_a_reload_does_not_end_it() -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    command = ("engine",)
    with child("") as engine, child("import time; time.sleep(60)") as worker:
        engine.process.wait(60)
        now = Running(config, {command: engine}, [])
        supervisor._next = Running(config, {command: engine}, [worker])
        assert supervisor._take_over(now) is now
        assert supervisor._next is not None, "the engine is started again, as it would be without a reload"
        supervisor._next.engines = {("another",): engine}
        supervisor._take_over(now)
        assert supervisor._next is None, "one that is new must come up"
    for listener in supervisor._sockets:
        listener.close()
    supervisor._folder.cleanup()
