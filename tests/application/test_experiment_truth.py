"""Experiments of a real gateway of four workers over a real upstream: every way in which an arm is worse is called so,
a dead arm is stopped at once, and figures and stops outlive a supervisor that is killed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.processes import LIMIT, Gateway, alive, serving, until

pytestmark = pytest.mark.slow

WAYS = ("half", "dead", "missing", "short", "late", "guarded")
CONFIG = """
[server]
workers = 4
state_file = "{folder}/state.json"
[backends.good]
kind = "openai"
url = "http://127.0.0.1:{port}/good/v1"
"""
BACKEND = """
[backends.{way}]
kind = "openai"
url = "http://127.0.0.1:{port}/{way}/v1"
retries = {{ attempts = 1 }}
[endpoints.{way}]
experiment = {{ {settings} }}
served_entities = [
  {{ name = "a", backend = "good", model = "m", traffic_percentage = 50 }},
  {{ name = "b", backend = "{way}", model = "m", traffic_percentage = 50 }},
]
"""
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
CLIENT_TIMEOUT = 0.5


class Upstream(BaseHTTPRequestHandler):
    """Answers chats; the first segment of the path says how."""

    protocol_version = "HTTP/1.1"
    asked = count()
    let_go = threading.Event()

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        way, number = self.path.split("/")[1], next(self.asked)
        content = body["messages"][0]["content"]
        if way in ("dead", "guarded") or (way == "half" and number % 2) or (way == "odd" and len(content) % 2):
            self._send(500, {"error": {"message": "broken"}})
        elif way == "missing":
            self._send(404, {"error": {"message": "no such model", "code": "model_not_found"}})
        elif way == "short" and len(content) > 64:
            self._send(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
        elif way == "late" and number % 2:
            self.let_go.wait(30)  # longer than any client waits
            self._send(200, ANSWER)
        else:
            self._send(200, ANSWER)

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the gateway has closed the connection
            self.close_connection = True


class Server(ThreadingHTTPServer):
    """Takes the connections of all workers' first health checks at once."""

    # The default is 5: what is above waits a second for the next try (TCP), and meanwhile an arm counts as loading.
    request_queue_size = 128
    daemon_threads = True


@pytest.fixture
def port() -> Iterator[int]:
    """Of a running upstream."""
    server = Server(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    Upstream.let_go.set()
    server.shutdown()
    thread.join()
    server.server_close()


def configured(folder: Path, port: int) -> str:
    text = CONFIG.format(folder=folder, port=port)
    for way in WAYS:
        settings = "guardrail = { worse_than = 0.02 }" if way == "guarded" else "alpha = 0.05"
        text += BACKEND.format(way=way, port=port, settings=settings)
    (file := folder / "gateway.toml").write_text(text)
    return str(file)


def test_every_way_to_be_worse_is_called_so_and_outlives_a_killed_supervisor(tmp_path: Path, port: int) -> None:
    file = configured(tmp_path, port)
    with serving("--config", file, log=tmp_path / "log") as gateway:
        asyncio.run(ask(gateway, "guarded", 60, at_once=1))
        for way in ("half", "dead", "missing", "short", "late"):
            asyncio.run(ask(gateway, way, 300 if way in ("half", "short", "late") else 220, at_once=8))
        ways = {way: report(gateway, way) for way in WAYS}
        b = ways["guarded"]["arms"][1]
        assert (b["apart"]["stopped"], b["exposures"] <= 15) == (1, True), b
        # Fallback repaired it for clients: both figures are there.
        assert (b["means"]["success"], b["means"]["served"]) == (0.0, 1.0)
        worse = {"half": "success", "dead": "success", "missing": "success", "short": "refused", "late": "abandoned"}
        for way, metric in worse.items():
            assert decision(ways[way], metric) == "worse", (way, ways[way])
        for way in ("half", "dead", "missing"):
            assert ways[way]["arms"][1]["means"]["served"] == 1.0
        workers = gateway.workers()
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(LIMIT)
        until(lambda: not any(map(alive, workers)), tmp_path / "log")
    with serving("--config", file, log=tmp_path / "again") as gateway:
        again = {way: report(gateway, way) for way in WAYS}
        for figures in ("arms", "since", "splits"):  # all but estimates of how long it will take from now on
            assert {way: again[way][figures] for way in WAYS} == {way: ways[way][figures] for way in WAYS}
        before = again["guarded"]["arms"][1]["exposures"]
        asyncio.run(ask(gateway, "guarded", 20, at_once=1))
        arms = report(gateway, "guarded")["arms"]
        assert (arms[1]["exposures"], arms[1]["apart"]["stopped"]) == (before, 1)


async def ask(gateway: Gateway, way: str, requests: int, *, at_once: int) -> None:
    """Chats of as many users, of which two in five are long; clients leave after a while."""
    numbers = iter(range(requests))

    async def client(http: httpx.AsyncClient) -> None:
        for number in numbers:
            content = "Hi " * (40 if number % 5 < 2 else 1)
            body = {"model": way, "user": f"u{number}", "messages": [{"role": "user", "content": content}]}
            limit = CLIENT_TIMEOUT if way == "late" else LIMIT
            try:
                answer = await http.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=limit)
            except httpx.ReadTimeout:
                assert way == "late"
            else:
                assert answer.status_code == 200 or way == "short", answer.text

    async with httpx.AsyncClient() as http:  # one for all: making one takes as long as many requests
        await asyncio.gather(*(client(http) for _ in range(at_once)))


def report(gateway: Gateway, way: str) -> Any:
    """The report of an endpoint, once all requests that were begun are counted."""
    for _ in range(200):
        with urllib.request.urlopen(f"{gateway.url}/serving-endpoints/{way}/experiment", timeout=LIMIT) as answer:
            found = json.load(answer)
        # A worker notices that a client has left a moment later.
        if all(arm["means"].get("abandoned") is not None for arm in found["arms"]):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def decision(found: Any, metric: str) -> str:
    return next(str(each["decision"]) for each in found["comparisons"] if each["metric"] == metric)
