"""What the supervisor does when processes end, without a gateway around it."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.process import BackOff, SupervisedProcess, stop
from gateway.config import Config, ConfigError, ServerSection
from gateway.process.generation import Generation
from gateway.process.successor import Predecessor
from gateway.process.supervisor import Supervisor


@contextmanager
def child(code: str) -> Iterator[SupervisedProcess]:
    made = SupervisedProcess("it", lambda: subprocess.Popen([sys.executable, "-c", code]), BackOff())
    try:
        yield made
    finally:
        stop([made], 60)


def open_files() -> int:
    gc.collect()  # what earlier tests have left is not to be closed meanwhile
    return len(list(Path("/proc/self/fd").iterdir()))


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
    supervisor.close()


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
    supervisor.close()


@pytest.mark.parametrize(("code", "why"), [("", "one of its endpoints cannot answer"), (None, "it was stopped")])
def test_the_supervisor_before_learns_why_this_one_does_not_serve(code: str | None, why: str) -> None:
    reasons: list[str] = []
    predecessor = cast(Predecessor, SimpleNamespace(waits=True, refuse=reasons.append))
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config, predecessor=predecessor)
    with child(code or "") as worker:
        worker.process.wait(60)
        supervisor._stop_requested = code is None
        assert not supervisor._succeed(Generation(config, {}, [worker]))
    assert reasons == [why]
    supervisor.close()


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
    supervisor.close()


def test_reloads_leave_no_descriptor_open() -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    now = Generation(config, {}, [])
    before = open_files()
    for _ in range(3):
        supervisor._prepare(now)
        assert supervisor._next is not None
        supervisor._drop(supervisor._next, now)
        supervisor._next = None
    assert open_files() == before
    supervisor.close()


def test_a_reload_for_which_not_all_processes_can_be_started_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(server=ServerSection(port=0, workers=2))
    supervisor = Supervisor(lambda: config)
    now = Generation(config, {}, [])
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*args, **options))
        return started[0]

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", popen)
        supervisor._prepare(now)
    assert supervisor._next is None
    assert supervisor._take_over(now) is now
    assert started[0].returncode is not None
    assert open_files() == before
    supervisor.close()


def test_the_mark_of_an_earlier_worker_with_the_same_process_id_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    supervisor._current = now = Generation(config, {}, [])
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **options)
        supervisor._listening_mark(process.pid).touch()
        return process

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", popen)
        supervisor._prepare(now)
    assert supervisor._take_over(now) is now
    assert supervisor._next is not None
    supervisor._drop(supervisor._next, now)
    supervisor.close()


def test_a_worker_that_ends_before_it_has_its_orders_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(server=ServerSection(port=0))
    supervisor = Supervisor(lambda: config)
    now = Generation(config, {}, [])
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **options)
        process.kill()
        process.wait()
        return process

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", popen)
        supervisor._prepare(now)
    assert supervisor._next is not None
    supervisor._drop(supervisor._next, now)
    assert open_files() == before
    supervisor.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["invalid", "backend", "address"])
def test_a_refused_configuration_leaves_nothing_open(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a folder nor a socket: what is left open is a warning when it is collected, and an error here."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as occupied:

        def read() -> Config:
            if fault == "invalid":
                raise ConfigError("invalid")
            if fault == "backend":
                return Config(server=ServerSection(port=0), backends={"b": {"kind": "nonsense"}})
            return Config(server=ServerSection(port=occupied.getsockname()[1]))

        with pytest.raises(ConfigError):
            Supervisor(read)
        gc.collect()
    assert list(tmp_path.iterdir()) == []
