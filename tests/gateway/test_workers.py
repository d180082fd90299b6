"""Several worker processes: a unit has the same arm on each of them, and each tells the figures of all."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.assignment import assign

pytestmark = pytest.mark.slow

CONFIG = """
[server]
port = {port}
workers = 4
[backends.s]
kind = "scripted"
[endpoints.chat]
experiment = {{ feedback = {{ liked = "higher" }} }}
served_entities = [
  {{ name = "a", backend = "s", model = "echo", traffic_percentage = 80 }},
  {{ name = "b", backend = "s", model = "echo", traffic_percentage = 20 }},
]
"""
SHARES = {"a": 80.0, "b": 20.0}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIG.format(port=port))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file)], stdout=log, stderr=log
        )
    try:
        _wait(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def _wait(url: str) -> None:
    for _ in range(300):
        try:
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the gateway did not come up")


def test_workers_agree_and_tell_whole_figures(url: str) -> None:
    workers = set()
    for number in range(200):  # each on a connection of its own, which any worker may take
        user = f"user {number % 40}"
        body = {"model": "chat", "user": user, "messages": [{"role": "user", "content": "Hi"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.headers["served-model-name"] == assign("chat", SHARES, user)
        workers.add(answer.headers["x-request-id"][:16])
        told = {"request_id": answer.headers["x-request-id"], "metric": "liked", "value": number % 2}
        assert httpx.post(f"{url}/v1/feedback", json=told).status_code == 204
    assert len(workers) > 1
    reports = [httpx.get(f"{url}/serving-endpoints/chat/experiment").json() for _ in range(20)]
    assert all(report == reports[0] for report in reports)
    arms = reports[0]["arms"]
    assert sum(arm["exposures"] for arm in arms) == 200
    assert sum(arm["exposures"] * arm["means"]["liked"] for arm in arms) == pytest.approx(100)
