"""What the supervisor does when processes end, without a gateway around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.process import BackOff, SupervisedProcess, stop
from gateway.config import Config, ConfigError, ServerSection
from gateway.process.supervisor import Generation, Supervisor


@contextmanager
def child(code: str) -> Iterator[SupervisedProcess]:
    made = SupervisedProcess("it", lambda: subprocess.Popen([sys.executable, "-c", code]), BackOff())
    try:
        yield made
    finally:
        stop([made], 60)


def close(supervisor: Supervisor) -> None:
    for listener in supervisor._sockets:
        listener.close()
    supervisor._folder.cleanup()


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
    close(supervisor)


@pytest.mark.parametrize("wrong", ["invalid", "address"])
def test_a_reload_with_a_wrong_configuration_changes_nothing(wrong: str) -> None:
    config = Config(server=ServerSection(port=0))
    reads = [config]

    def read() -> Config:
        if not reads:
            raise ConfigError("invalid")
        return reads.pop()

    supervisor = Supervisor(read)
    if wrong == "address":
        reads.append(Config(server=ServerSection(port=0, host="localhost")))
    now = Generation(config, {}, [])
    supervisor._prepare(now)
    assert reads == []
    assert supervisor._next is None
    assert supervisor._take_over(now) is now
    close(supervisor)


def test_an_engine_that_no_generation_needs_is_stopped_when_its_workers_have_ended() -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    with child("import time; time.sleep(60)") as engine, child("import time; time.sleep(60)") as worker:
        supervisor._leaving.append(Generation(config, {("engine",): engine}, [worker]))
        supervisor._stop_unused_engines()
        assert not engine.ended, "the worker may still need it"
        stop([worker], 60)
        supervisor._stop_unused_engines()
        assert engine.ended
        assert supervisor._leaving == []
    close(supervisor)
