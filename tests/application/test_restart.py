"""SIGUSR2: a second supervisor takes the sockets over; nothing is cut off or refused, and nothing changes if it fails.

Also sockets that systemd hands over, since they come in the same way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, SCRIPTED, alive, serving, status, until

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
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
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
