"""Prometheus itself scrapes two gateways, one of two workers, and answers every query of the board and the rules."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.queries import DEPLOY, RULES, board_queries, rule_queries, selectors
from tests.gateway.processes import LIMIT, Gateway, serving, until
from tests.missing_tools import missing
from tests.ports import free_port

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("promtool"), reason=missing("prometheus (Debian's package)")),
]

# The engine runs in its worker, which saves a process.
INNER = """
[backends.local]
kind = "native"
engine = "inprocess"
speculation = true
[endpoints.demo]
served_entities = [{ name = "demo-1", backend = "local" }]
"""
OUTER = """
[server]
workers = 2
[server.export]
folder = "FOLDER"
[backends.far]
kind = "openai"
url = "INNER/v1"
models = { far = "demo" }
[backends.broken]
kind = "openai"
url = "BROKEN"
failures = 1
health_interval = 600.0
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [
    { name = "far-1", backend = "far", model = "far", traffic_percentage = 50, price = { completion = 2 } },
    { name = "echo-1", backend = "s", model = "echo", traffic_percentage = 50, price = { completion = 2 } },
    { name = "copy", backend = "s", model = "echo", traffic_percentage = 0, shadow = {} },
]
[endpoints.failing]
served_entities = [
    { name = "broken-1", backend = "broken", model = "m", traffic_percentage = 100 },
    { name = "echo-1", backend = "s", model = "echo", traffic_percentage = 0 },
]
[endpoints.limited]
limits = [{ requests = 1 }]
served_entities = [{ name = "echo-1", backend = "s", model = "echo" }]
[endpoints.wrong]
served_entities = [{ name = "wrong-1", backend = "s", model = "error" }]
"""
# Pairs need a second native model.
UNUSED = "gw_pairs_total"


def test_the_rules_and_the_configuration_are_valid() -> None:
    subprocess.run(["promtool", "check", "config", str(DEPLOY / "prometheus/prometheus.yml")], check=True)
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", str(RULES)], check=True)


def test_the_rules_alert_when_they_should() -> None:
    subprocess.run(["promtool", "test", "rules", "rules_test.yml"], check=True, cwd=Path(__file__).parent)


def test_every_query_of_the_board_and_the_rules_finds_series(tmp_path: Path) -> None:
    with ExitStack() as stack:
        inner = stack.enter_context(_gateway(tmp_path, "inner", INNER))
        broken = stack.enter_context(_resetting())
        text = OUTER.replace("INNER", inner.url).replace("BROKEN", broken).replace("FOLDER", str(tmp_path / "rows"))
        outer = stack.enter_context(_gateway(tmp_path, "outer", text))
        prometheus = stack.enter_context(_prometheus(tmp_path, inner, outer))
        for _ in range(2):
            _ask(outer)
            _scraped(prometheus, tmp_path / "prometheus.log")
        asked = {name: query for name, query in board_queries().items() if UNUSED not in query}
        assert [name for name, query in asked.items() if not _found(prometheus, "query", query=query)] == []
        for name, query in rule_queries().items():
            _found(prometheus, "query", query=query)  # Prometheus can evaluate it
            for selector in selectors(query):
                assert _found(prometheus, "series", **{"match[]": selector}), f"{name}: {selector}"
        # Both gateways show the sums of their workers, under the labels of each target once.
        totals = _found(prometheus, "query", query="count by (instance) (gw_requests_running)")
        assert sorted(each["value"][1] for each in totals) == ["1", "1"]
        assert [each for each in _get(prometheus, "rules")["groups"][0]["rules"] if each["health"] == "err"] == []


def _ask(gateway: Gateway) -> None:
    """Requests that begin every series: whole, streamed, failed, refused, at every backend."""
    for number in range(6):
        for stream in (False, True):
            asked = {"model": "chat", "messages": [{"role": "user", "content": f"one two three {number}"}]}
            more = {"stream": stream, "max_tokens": 8, "user": f"user-{number}", "unknown_field": 1}
            _post(gateway, asked | more)
    for model in ("failing", "failing", "limited", "limited", "limited", "wrong"):
        _post(gateway, {"model": model, "messages": [{"role": "user", "content": "Hi"}]})
    with socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(gateway.url).port or 0), timeout=LIMIT) as raw:
        raw.sendall(b"no HTTP\r\n\r\n")
        raw.recv(1000)


def _post(gateway: Gateway, body: dict[str, Any]) -> None:
    try:
        with gateway.open("/v1/chat/completions", body) as answer:
            answer.read()
    except urllib.error.HTTPError:
        pass


@contextmanager
def _gateway(folder: Path, name: str, text: str) -> Iterator[Gateway]:
    (file := folder / f"{name}.toml").write_text(text)
    with serving("--config", str(file), log=folder / f"{name}.log") as gateway:
        yield gateway


@contextmanager
def _resetting() -> Iterator[str]:
    """A server that is healthy, and closes the connection of every other request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _prometheus(folder: Path, *gateways: Gateway) -> Iterator[str]:
    """Prometheus with the project's configuration, but for targets and intervals; its URL."""
    text = (DEPLOY / "prometheus/prometheus.yml").read_text().replace("15s", "1s")
    targets = json.dumps([urllib.parse.urlsplit(gateway.url).netloc for gateway in gateways])
    assert '["gateway:8000"]' in text
    (folder / "prometheus.yml").write_text(text.replace('["gateway:8000"]', targets))
    shutil.copy(RULES, folder)
    address = f"127.0.0.1:{free_port()}"
    data, file = folder / "data", folder / "prometheus.yml"
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _until_up(f"http://{address}", len(gateways), folder / "prometheus.log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(LIMIT)


def _until_up(url: str, targets: int, log: Path) -> None:
    def up() -> bool:
        try:
            return len(_found(url, "query", query="up == 1")) == targets
        except OSError:
            return False

    until(up, log)


def _scraped(url: str, log: Path) -> None:
    """Wait until both gateways were scraped twice from now on."""
    query = "sum by (instance) (count_over_time(up[1h]))"

    def counts() -> list[float]:
        return [float(each["value"][1]) for each in _found(url, "query", query=query)]

    before = counts()
    until(lambda: min(now - then for now, then in zip(counts(), before, strict=True)) >= 2, log)


def _found(url: str, what: str, **parameters: str) -> list[Any]:
    found = _get(url, what, **parameters)
    return list(found["result"] if isinstance(found, dict) else found)


def _get(url: str, what: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=LIMIT) as answer:
        return json.load(answer)["data"]
