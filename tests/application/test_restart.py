"""A restart: a second supervisor takes the sockets over; nothing is cut off or refused, nothing changes if it fails.

By SIGUSR2 and by `gateway restart`, with what a service manager is sent; and `gateway reload`. Also sockets that
systemd hands over, since they come in the same way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, SCRIPTED, alive, serving, status, until
from tests.ports import free_port

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "one two three four five six"}], "max_tokens": 6}
ACTIVATE = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.dup2(listener.fileno(), 9)
os.dup2(9, 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "gateway.cli", "serve", *sys.argv[2:]])
"""


def successors(log: Path, event: str) -> list[int]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line["pid"] for line in lines if line.get("event") == event]


def end(pid: int, log: Path) -> None:
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid), log)


def command(*arguments: str) -> tuple[int, str]:
    """The exit code of `gateway` with these arguments, and all that it says."""
    path = str(Path(sys.executable).parent / "gateway")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    return done.returncode, done.stdout + done.stderr


def heard_by(manager: socket.socket) -> list[str]:
    """What the service manager has been sent since the last call, without repetitions."""
    manager.setblocking(False)
    found: list[str] = []
    with suppress(BlockingIOError):
        while True:
            fields = manager.recv(4096).decode().split("\n")
            found += [field for field in fields if not field.startswith(("MONOTONIC", "EXTEND")) and field not in found]
    return found


def test_commands_reload_and_restart_a_server_and_say_why_if_not(tmp_path: Path) -> None:
    (config := tmp_path / "gateway.toml").write_text(good := SCRIPTED.format(workers=1))
    wrong = good.replace('backend = "s"', 'backend = "t"', 1)
    log, notify = tmp_path / "log", f"{tempfile.mkdtemp(dir='/tmp')}/notify"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        serving("--config", str(config), log=log, env={"NOTIFY_SOCKET": bind(manager, notify)}) as gateway,
    ):
        port = gateway.url.rpartition(":")[2]
        assert heard_by(manager)[-2:] == ["READY=1", "STATUS=ready"]
        config.write_text(wrong)
        code, text = command("reload", "--port", port)
        assert code == 1
        assert f"the reload failed, and the server on 127.0.0.1:{port} (process {gateway.process.pid}) serves" in text
        assert "no backend is called 't'" in text
        code, text = command("restart", "--port", port)
        assert code == 1
        assert "no backend is called 't'" in text
        begun, ready, reload_refused, restart_refused = heard_by(manager)
        assert (begun, ready) == ("RELOADING=1", "READY=1")
        assert reload_refused.startswith("STATUS=reload refused: ")
        assert restart_refused.startswith("STATUS=restart refused: ")
        config.write_text(good + good[good.index("[endpoints.hang]") :].replace("hang", "another"))
        assert command("reload", "--port", port) == (
            0,
            f"Reloaded the server on 127.0.0.1:{port} (process {gateway.process.pid}): added endpoints another.\n",
        )
        assert heard_by(manager) == ["RELOADING=1", "READY=1", "STATUS=reloaded"]
        with gateway.open("/v1/chat/completions", CHAT | {"model": "slow", "stream": True}) as stream:
            code, text = command("restart", "--port", port)
            (successor,) = successors(log, "successor.took_over")
            try:
                assert (code, f"process {successor} serves now" in text) == (0, True)
                assert stream.read().endswith(b"data: [DONE]\n\n")
                assert gateway.process.wait(LIMIT) == 0
                # The next one may speak before the old one has said that it is the main process now.
                assert (heard := heard_by(manager))[0] == "RELOADING=1"
                assert {f"MAINPID={successor}", "READY=1"} <= set(heard)
                # The next one is found by its commands in turn.
                assert f"(process {successor}): nothing has changed" in command("reload", "--port", port)[1]
            finally:
                end(successor, log)
        assert heard_by(manager)[-1] == "STOPPING=1"


def bind(manager: socket.socket, path: str) -> str:
    manager.bind(path)
    return path


@pytest.mark.torch
def test_streams_of_a_native_model_are_whole_over_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(log=log) as gateway:
        body = CHAT | {"model": "interlingua", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
        expected = gateway.open("/v1/chat/completions", body).read()
        engines, port = gateway.engines(), gateway.url.rpartition(":")[2]
        stop, whole = threading.Event(), list[bytes]()

        def ask() -> None:
            while not stop.wait(0.1):
                whole.append(gateway.open("/v1/chat/completions", body).read())

        asking = threading.Thread(target=ask)
        asking.start()
        code, text = command("restart", "--port", port)
        stop.set()
        asking.join()
        (successor,) = successors(log, "successor.took_over")
        try:
            assert code == 0, text
            assert gateway.process.wait(LIMIT) == 0
            assert not any(map(alive, engines))
            assert content(gateway.open("/v1/chat/completions", body).read()) == content(expected)
        finally:
            end(successor, log)
    assert whole
    assert [content(each) for each in whole] == [content(expected)] * len(whole)


def content(stream: bytes) -> str:
    """The text of a stream that is whole."""
    *chunks, done = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]
    assert done == b"[DONE]"
    return "".join(choice["delta"].get("content") or "" for each in chunks for choice in json.loads(each)["choices"])


def test_no_stream_is_cut_and_no_connection_refused_while_a_successor_takes_over(tmp_path: Path) -> None:
    (config := tmp_path / "gateway.toml").write_text(SCRIPTED.format(workers=2))
    log, stop, broken, answered = tmp_path / "log", threading.Event(), list[Exception](), list[int]()
    with serving("--config", str(config), log=log) as gateway:
        streams = [gateway.open("/v1/chat/completions", CHAT | {"model": "slow", "stream": True}) for _ in range(8)]
        first = [stream.readline() for stream in streams]

        def ask() -> None:
            while not stop.is_set():
                try:
                    gateway.ask("/v1/chat/completions", CHAT | {"model": "echo"})
                    answered.append(1)
                except Exception as error:
                    broken.append(error)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        old = gateway.workers()
        gateway.process.send_signal(signal.SIGUSR2)
        rest = [stream.read() for stream in streams]
        assert gateway.process.wait(LIMIT) == 0
        (successor,) = successors(log, "successor.took_over")
        try:
            after = len(answered)
            until(lambda: len(answered) > after + 20, log)
            stop.set()
            for thread in asking:
                thread.join()
            assert not any(map(alive, old))
            assert status(f"{gateway.url}/health/ready") == 200
        finally:
            stop.set()
            end(successor, log)
    assert all(line.startswith(b"data: {") for line in first)
    assert all(each.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in each for each in rest)
    assert broken == []
    assert status(f"{gateway.url}/health") == 0, "the successor was the last that listened"


def test_a_successor_that_does_not_serve_changes_nothing(tmp_path: Path) -> None:
    (config := tmp_path / "gateway.toml").write_text(good := SCRIPTED.format(workers=1))
    (code := tmp_path / "code").mkdir()
    log, path = tmp_path / "log", os.environ.get("PYTHONPATH", "")
    with serving("--config", str(config), log=log, env={"PYTHONPATH": f"{code}:{path}"}) as gateway:
        workers = gateway.workers()

        def fails(times: int) -> None:
            gateway.process.send_signal(signal.SIGUSR2)
            until(lambda: len(successors(log, "successor.failed")) == times, log)
            assert gateway.workers() == workers
            assert gateway.ask("/v1/chat/completions", CHAT | {"model": "echo"})["choices"]

        config.write_text(good.replace('backend = "s"', 'backend = "t"', 1))
        fails(1)
        assert "'t'" in log.read_text()
        # What cannot be reached: workers end, and with them the successor.
        config.write_text(
            good.replace('kind = "scripted"', 'kind = "tgi"\nurl = "http://127.0.0.1:9"\napi_key_env = "X"')
        )
        fails(2)
        config.write_text(good)
        (code / "gateway").mkdir()
        (code / "gateway" / "__init__.py").write_text("raise RuntimeError('new code that does not start')")
        fails(3)
        assert "new code that does not start" in log.read_text()
        codes = [json.loads(line)["code"] for line in log.read_text().splitlines() if "successor.failed" in line]
        assert codes == [1, 1, 1]


def test_sockets_are_taken_from_systemd(tmp_path: Path) -> None:
    port = free_port()
    (config := tmp_path / "gateway.toml").write_text(SCRIPTED.format(workers=1))
    command = [sys.executable, "-c", ACTIVATE, str(port), "--config", str(config), "--port"]
    other = subprocess.run([*command, str(port + 1)], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert other.returncode == 1
    assert f"started with sockets for 127.0.0.1:{port}" in other.stderr
    (log := tmp_path / "log").touch()
    with log.open("wb") as out, subprocess.Popen([*command, str(port)], stdout=out, stderr=out) as process:
        until(lambda: status(f"http://127.0.0.1:{port}/health/ready") == 200, log)
        process.terminate()
        assert process.wait(LIMIT) == 0
