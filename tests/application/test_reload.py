"""SIGHUP: the changed configuration file is served, and requests in flight are not interrupted."""

from __future__ import annotations

import signal
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.processes import Gateway, serving, until

pytestmark = pytest.mark.slow

ECHO = """
[endpoints.echo]
served_entities = [{ name = "echo-1", backend = "s", model = "echo" }]
"""
HEAD = """
[server]
workers = {workers}
[backends.s]
kind = "scripted"
"""
SLOW = """
[endpoints.slow]
served_entities = [{ name = "slow-1", backend = "s", model = "slow" }]
"""
CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Path]]:
    """A gateway that serves `echo`, and its configuration file."""
    folder = tmp_path_factory.mktemp("served")
    file = folder / "gateway.toml"
    file.write_text(HEAD.format(workers=1) + ECHO)
    with serving("--config", str(file), log=folder / "log") as gateway:
        yield gateway, file


def known(gateway: Gateway, model: str) -> bool:
    try:
        return bool(gateway.ask("/v1/chat/completions", CHAT | {"model": model})["choices"])
    except urllib.error.HTTPError as error:
        return error.code != 404


def test_streams_finish_on_old_workers_and_requests_begin_on_new_ones(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD.format(workers=2) + ECHO + SLOW)
    log, stop, broken = tmp_path / "log", threading.Event(), list[Exception]()
    with serving("--config", str(file), log=log) as gateway:
        old = set(gateway.workers())
        stream = gateway.open("/v1/chat/completions", CHAT | {"model": "slow", "stream": True})
        first = stream.readline()

        def ask() -> None:
            while not stop.is_set():
                try:
                    gateway.ask("/v1/chat/completions", CHAT | {"model": "echo"})
                except Exception as error:
                    broken.append(error)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        file.write_text(HEAD.format(workers=3) + ECHO + ECHO.replace(".echo]", ".new]"))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: not old & set(gateway.workers()), log)
        stop.set()
        for thread in asking:
            thread.join()
        rest = stream.read()
        assert len(gateway.workers()) == 3
        assert known(gateway, "new")
        assert not known(gateway, "slow")
    assert first.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert not broken


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[endpoints.echo\n", "declaration"),
        (HEAD.format(workers=1).replace("workers", "host = '127.0.0.2'\nworkers") + ECHO, "address"),
        (
            HEAD.format(workers=1).replace("workers", "host = '0.0.0.0'\nworkers") + ECHO,
            "other machines can reach",
        ),
        (HEAD.format(workers=1) + ECHO.replace('backend = "s"', 'backend = "t"'), "'t'"),
        (
            '[backends.s]\nkind = "tgi"\nurl = "http://127.0.0.1:9"\napi_key_env = "UNSET_KEY"\n' + ECHO,
            "UNSET_KEY is not set",
        ),
    ],
    ids=["no TOML", "another address", "a public one", "no such backend", "a variable that is not set"],
)
def test_a_configuration_that_cannot_be_served_is_rejected_and_the_old_one_kept(
    served: tuple[Gateway, Path], text: str, why: str
) -> None:
    gateway, file = served
    workers, log = gateway.workers(), gateway.log
    logged = len(log.read_text())
    file.write_text(text)
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: "config.rejected" in log.read_text()[logged:], log)
    assert why in log.read_text()[logged:]
    until(lambda: gateway.workers() == workers, log)
    assert known(gateway, "echo")


def test_a_reload_replaces_workers_that_still_wait_for_their_backend(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD.format(workers=1) + ECHO)
    log = tmp_path / "log"
    with serving("--config", str(file), log=log) as gateway:
        [old] = gateway.workers()
        file.write_text('[backends.s]\nkind = "tgi"\nurl = "http://127.0.0.1:9"\n' + ECHO)
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: len(gateway.workers()) == 2, log)
        assert known(gateway, "echo")
        file.write_text(HEAD.format(workers=1) + ECHO + ECHO.replace(".echo]", ".new]"))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: len(gateway.workers()) == 1 and old not in gateway.workers(), log)
        assert known(gateway, "new")


def test_a_stop_while_a_reload_loads_is_no_failure(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD.format(workers=1) + ECHO)
    log = tmp_path / "log"
    with serving("--config", str(file), log=log) as gateway:
        file.write_text('[backends.s]\nkind = "tgi"\nurl = "http://127.0.0.1:9"\n' + ECHO)
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: "backend.unreachable" in log.read_text(), log)
        assert gateway.stop() == 0
    text = log.read_text()
    assert "Traceback" not in text
    assert '"worker.stopped"' in text
    assert "ERROR" not in text


@pytest.mark.torch
def test_an_engine_is_kept_unless_its_options_change(file: Path, tmp_path: Path) -> None:
    native = "[backends.n]\nkind = 'native'\nmax_sequences = 8\n"
    text = native + "[endpoints.m]\nserved_entities = [{ name = 'm', backend = 'n' }]\n"
    file.write_text(text)
    log = tmp_path / "log"
    with serving("--config", str(file), log=log) as gateway:
        [engine], [worker] = gateway.engines(), gateway.workers()
        file.write_text(text + ECHO.replace('"s"', '"n"'))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: worker not in gateway.workers(), log)
        assert gateway.engines() == [engine]
        assert known(gateway, "echo")
        file.write_text(text.replace("8", "9"))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: engine not in gateway.engines(), log)
        assert len(gateway.engines()) == 1
        assert known(gateway, "m")
