"""A gateway that is killed in the middle of a batch: the next one answers the rest, and no line twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.http.batches.serving import line
from tests.gateway.processes import alive, serving, start, until

pytestmark = pytest.mark.slow

CONFIG = """
[server]
workers = 2
[batches]
folder = "{folder}/batches"
[backends.s]
kind = "scripted"
[endpoints.echo]
served_entities = [{{ name = "echo-1", backend = "s", model = "echo" }}]
[endpoints.last]
served_entities = [{{ name = "last-1", backend = "s", model = "{last}" }}]
"""
LINES = 300


def test_each_line_is_answered_once_though_the_gateway_is_killed(tmp_path: Path) -> None:
    config, log = tmp_path / "gateway.toml", tmp_path / "log"
    config.write_text(CONFIG.format(folder=tmp_path, last="hang"))
    first = start("--config", str(config), log=log)
    until(first.greets, log)
    names = [f"l{number}" for number in range(LINES)]
    last = line("last", {"model": "last", "messages": [{"role": "user", "content": "I am last"}]})
    with httpx.Client(base_url=first.url) as client:
        content = "\n".join([last, *map(line, names)]).encode()
        file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in", content)}).json()["id"]
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        path = f"/v1/batches/{client.post('/v1/batches', json=asked).json()['id']}"
        until(lambda: client.get(path).json()["request_counts"]["completed"] >= LINES // 10, log)
        # The line that hangs: the batch cannot have ended.
        processes = [first.process.pid, *first.children()]
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        first.process.wait()
        until(lambda: not any(map(alive, processes)), log)
    config.write_text(CONFIG.format(folder=tmp_path, last="echo"))
    with serving("--config", str(config), log=log) as second, httpx.Client(base_url=second.url) as client:
        until(lambda: client.get(path).json()["status"] == "completed", log)
        batch = client.get(path).json()
        assert batch["request_counts"] == {"total": LINES + 1, "completed": LINES + 1, "failed": 0}
        answers = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    results = [httpx.Response(200, content=answer).json() for answer in answers]
    assert sorted(result["custom_id"] for result in results) == sorted(["last", *names])
    assert all(_text(result) == f"I am {result['custom_id']}" for result in results)


def _text(result: dict[str, Any]) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])
