"""The socket by which commands reach a supervisor, and what they say when there is none."""

from __future__ import annotations

import errno
import os
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.process.control import ControlSocket
from gateway.process.folder import SharedFolder


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders are, with a short path: that of a socket has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


@contextmanager
def supervisor(*, done: bool = True, text: str = "", silent: bool = False, ends: bool = False) -> Iterator[int]:
    """A control socket that is asked often, as a supervisor does; yields the port that it names."""
    shared, stop = SharedFolder(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control = ControlSocket(shared.path, [listener])

        def tend() -> None:
            while not stop.wait(0.005):
                for action in () if silent else control.requests():
                    if ends:
                        control.close()
                    control.answer(action, done=done, text=text)

        thread = threading.Thread(target=tend)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            thread.join()
            control.close()
            shared.remove()


def test_a_descriptor_is_readable_when_there_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedFolder()
    control = ControlSocket(shared.path, [])
    try:
        assert not readable(control)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(shared.path / "control"))
            assert readable(control)
            assert control.requests() == set()
            client.sendall(b'"reload"\n')
            assert readable(control)
            assert control.requests() == {"reload"}
            assert not readable(control), "it waits for its outcome"
        with socket.socket(socket.AF_UNIX) as client, monkeypatch.context() as patch:
            client.connect(str(shared.path / "control"))
            patch.setattr(socket.socket, "accept", full)
            assert control.requests() == set()
            assert not control.descriptors, "without a descriptor left, it would be asked again and again"
    finally:
        control.close()
        shared.remove()


def full(_: socket.socket) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def readable(control: ControlSocket) -> bool:
    return bool(select.select(control.descriptors, [], [], 0.05)[0])


def test_without_a_server_the_sentence_says_where_it_was_looked_for(folder: Path) -> None:
    SharedFolder()  # of a supervisor that was killed, or one that does not serve yet
    code, text = said("reload")
    assert code == 1
    assert f"no server of this user was found in {folder}" in text


def test_the_server_of_another_user_is_not_asked(folder: Path) -> None:
    (other := folder / "interlingua-other").mkdir()
    os.symlink("/etc/passwd", folder / "interlingua-link")
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    os.chown(other, 65534, 65534)
    code, text = said("restart")
    assert code == 1
    assert "but of nobody: only that user may do this" in text


def test_the_outcome_is_printed() -> None:
    with supervisor(text="changed endpoints chat") as port:
        assert said("reload") == (
            0,
            f"Reloaded the server on 127.0.0.1:{port} (process {os.getpid()}): changed endpoints chat.\n",
        )
    with supervisor(text="4711") as port:
        code, text = said("restart", "--port", str(port))
        assert code == 0
        assert text.endswith("process 4711 serves now; the old one finishes its streams.\n")
    with supervisor(done=False, text="a.toml: there is no backend 't'"):
        code, text = said("reload")
        assert code == 1
        assert "serves as before: a.toml: there is no backend 't'" in text
    with supervisor(ends=True):
        code, text = said("restart")
        assert code == 1
        assert "ended before it could restart" in text


def test_of_several_servers_one_is_chosen_by_its_port() -> None:
    with supervisor(text="the first") as first, supervisor(text="the second") as second:
        code, text = said("reload")
        assert code == 1
        assert f"127.0.0.1:{first} " in text
        assert f"127.0.0.1:{second} " in text
        assert text.endswith("choose one by --port\n")
        assert "the second" in said("reload", "--port", str(second))[1]
        code, text = said("reload", "--port", "1")
        assert code == 1
        assert "no server listens on port 1" in text


def test_a_server_that_is_stopped_differs_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.control._INTRODUCED_WITHIN", 0.05)
    with supervisor(silent=True):
        code, text = said("reload")
    assert code == 1
    assert "does not answer: it is stopped, or busy" in text


def test_a_path_that_is_too_long_leaves_the_signals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (long := folder / ("x" * 110)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    shared = SharedFolder()
    control = ControlSocket(shared.path, [])
    assert control.requests() == set()
    control.close()
    shared.remove()
