"""Workers that are stopped, supervisors that are killed, and connections that the kernel has queued at SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, SCRIPTED, alive, serving, start, status, until

pytestmark = pytest.mark.slow

HI = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}


def config(folder: Path, *, hung_after: float = 60.0) -> Path:
    text = SCRIPTED.format(workers=1).replace("[server]", f"[server]\nhung_after = {hung_after}")
    (file := folder / "gateway.toml").write_text(text)
    return file


def test_a_stopped_worker_is_replaced(tmp_path: Path) -> None:
    with serving("--config", str(config(tmp_path, hung_after=1.0)), log=tmp_path / "log") as gateway:
        (worker,) = gateway.workers()
        os.kill(worker, signal.SIGSTOP)
        # The request waits in the kernel's queue until the next worker takes it.
        assert gateway.ask("/v1/chat/completions", HI)["choices"][0]["message"]["content"] == "Hi"
        assert not alive(worker)
        assert "process.hung" in gateway.log.read_text()


def test_nothing_is_left_of_a_killed_supervisor(tmp_path: Path) -> None:
    (folder := tmp_path / "tmp").mkdir()
    env = {"TMPDIR": str(folder)}
    file = str(config(tmp_path, hung_after=1.0))
    gateway = start("--config", file, log=tmp_path / "log", env=env)
    until(gateway.greets, gateway.log)
    worker = gateway.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    gateway.process.kill()
    gateway.process.wait()
    until(lambda: not alive(worker), gateway.log)
    (left,) = folder.glob("interlingua-*")
    with serving("--config", file, log=tmp_path / "log2", env=env):
        assert not left.exists()
    assert list(folder.glob("interlingua-*")) == []


def test_workers_that_wait_for_a_backend_end_with_their_supervisor(tmp_path: Path) -> None:
    """They hold the listening socket already: nobody could listen on the port if they stayed."""
    text = Path(file := config(tmp_path)).read_text()
    gateway = start("--config", str(file), log=tmp_path / "log")
    until(gateway.greets, gateway.log)
    file.write_text(text.replace('kind = "scripted"', 'kind = "tgi"\nurl = "http://127.0.0.1:9"'))
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: len(gateway.workers()) == 2, gateway.log)
    time.sleep(2.0)  # until the second one has its orders, and waits
    workers = gateway.workers()
    gateway.process.kill()
    gateway.process.wait()
    until(lambda: not any(map(alive, workers)), gateway.log)


def test_queued_connections_are_answered_at_the_end(tmp_path: Path) -> None:
    with serving("--config", str(config(tmp_path)), log=tmp_path / "log") as gateway:
        port = int(gateway.url.rpartition(":")[2])
        (worker,) = gateway.workers()
        assert status(gateway.url + "/health") == 200
        os.kill(worker, signal.SIGSTOP)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        for client in clients:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        gateway.process.send_signal(signal.SIGTERM)
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        answers = []
        for client in clients:
            client.settimeout(LIMIT)
            with client, client.makefile("rb") as answer:
                answers.append(answer.readline())
        assert answers == [b"HTTP/1.1 200 OK\r\n"] * 50
        until(lambda: status(gateway.url + "/health") == 0, gateway.log)
