"""A real OpenTelemetry collector gets what two workers send: one connected trace for each request, metrics and logs.

The collector is Rotel. It hands on what it has taken to the receiver of the other tests, which decodes it.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.gateway.observability.collector import Collector, Received, collector
from tests.gateway.processes import LIMIT, Gateway, serving, until
from tests.gateway.serving import MESSAGES
from tests.missing_tools import missing
from tests.ports import free_port

ROTEL = next(Path(__file__).parents[2].glob(".venv-tools/lib/python3*/site-packages/rotel/rotel-agent"), None)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(ROTEL is None, reason=missing("make .venv-tools/.installed")),
]

CONFIG = """
[server]
workers = 2
[telemetry]
endpoint = "{collector}"
metrics = true
logs = true
[backends.local]
kind = "native"
[backends.far]
kind = "openai"
url = "{upstream}/v1"
[endpoints.own]
served_entities = [{{ name = "own-1", backend = "local" }}]
[endpoints.far]
served_entities = [{{ name = "far-1", backend = "far", model = "m" }}]
"""
# Less patient than the defaults of several seconds: what is sent waits for nothing.
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
CLIENT = "b7ad6b7169203331"
ANSWER = (
    b'{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
)
PHASES, CHOICES = ["queue", "prefill", "decode"], 2


def test_each_request_is_one_trace_at_a_real_collector(tmp_path: Path) -> None:
    with collector() as received, _rotel(tmp_path, received.url) as url, _upstream() as (upstream, parents):
        (tmp_path / "gateway.toml").write_text(CONFIG.format(collector=url, upstream=upstream))
        with serving("--config", str(tmp_path / "gateway.toml"), env=SOON, log=tmp_path / "log") as gateway:
            asked = _asked_of_each_worker(gateway)
            until(lambda: _all_are_there(received, asked), tmp_path / "log")
            shown = httpx.get(f"{gateway.url}/metrics", timeout=LIMIT).text
    assert {(span.trace, span.service) for span in received.spans} == {(trace, "interlingua") for trace in asked}
    assert len(parents) == 2
    for trace, (endpoint, tokens) in asked.items():
        spans = [span for span in received.spans if span.trace == trace]
        (server,) = [span for span in spans if span.name == "POST /v1/chat/completions"]
        assert (server.kind, server.parent) == ("SERVER", CLIENT)
        assert server.attributes["gen_ai.request.model"] == endpoint
        if endpoint == "far":
            (sent,) = [span for span in spans if span.name == "chat m"]
            assert (sent.kind, sent.parent) == ("CLIENT", server.id)
            assert f"00-{trace}-{sent.id}-01" in parents, "the upstream gets the gateway's span as its parent"
        else:
            _check_phases(server, spans, tokens)
    labels = '{backend="local",model_name="own",served="own-1"}'
    for phase in (*PHASES, "inference"):
        assert f"vllm:request_{phase}_time_seconds_count{labels} {2.0 * CHOICES}" in shown


def _check_phases(server: Received, spans: list[Received], tokens: int) -> None:
    """Each sequence of the engine has a span below the gateway's, and its phases below that."""
    engines = [span for span in spans if span.name == "chat own"]
    assert [(span.parent, span.kind) for span in engines] == [(server.id, "INTERNAL")] * CHOICES
    assert sum(span.attributes["gen_ai.usage.output_tokens"] for span in engines) == tokens
    for engine in engines:
        phases = [span for span in spans if span.parent == engine.id]
        assert [span.name for span in sorted(phases, key=lambda span: span.span.end_time_unix_nano)] == PHASES
        assert sum(span.seconds for span in phases) == pytest.approx(engine.seconds)
        assert server.span.start_time_unix_nano < engine.span.start_time_unix_nano
        assert engine.span.end_time_unix_nano < server.span.end_time_unix_nano


def _asked_of_each_worker(gateway: Gateway) -> dict[str, tuple[str, int]]:
    """Have each worker answer a request at each endpoint: the endpoint and the tokens of the answer, by its trace."""
    asked: dict[str, tuple[str, int]] = {}
    for worker in gateway.workers():
        with gateway.only(worker), httpx.Client(base_url=gateway.url, timeout=LIMIT) as client:
            for endpoint, choices in (("far", 1), ("own", CHOICES)):
                body = {"model": endpoint, "messages": MESSAGES, "max_tokens": 8, "n": choices}
                trace = f"{len(asked) + 1:032x}"
                traced = {"traceparent": f"00-{trace}-{CLIENT}-01"}
                answer = client.post("/v1/chat/completions", json=body, headers=traced)
                assert answer.status_code == 200, answer.text
                asked[trace] = (endpoint, answer.json()["usage"]["completion_tokens"])
    return asked


def _all_are_there(received: Collector, asked: dict[str, tuple[str, int]]) -> bool:
    """Whether the collector has handed on all spans, a record of each request, and their number over both workers."""
    wanted = sum(2 if endpoint == "far" else 1 + CHOICES * (1 + len(PHASES)) for endpoint, _ in asked.values())
    finished = {record.trace_id.hex() for record in received.logs if record.body.string_value == "request.finished"}
    counted = received.metrics[-1].get("gw_requests") if received.metrics else None
    requests = sum(point.as_double for point in counted.sum.data_points) if counted is not None else 0
    return len(received.spans) >= wanted and finished >= set(asked) and requests == len(asked)


@contextmanager
def _rotel(folder: Path, sends_to: str) -> Iterator[str]:
    """A collector that hands on what it gets by OTLP; the URL of its own OTLP/HTTP port."""
    port, other = free_port(), free_port()
    options = {
        "otlp-http-endpoint": f"127.0.0.1:{port}",
        "otlp-grpc-endpoint": f"127.0.0.1:{other}",
        "pid-file": f"{folder}/rotel.pid",
        "exporter": "otlp",
        "otlp-exporter-protocol": "http",
        "otlp-exporter-endpoint": sends_to,
        "otlp-exporter-batch-timeout": "50ms",
    }
    arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    log = folder / "rotel.log"
    with log.open("wb") as out:
        process = subprocess.Popen([str(ROTEL), "start", *arguments], stdout=out, stderr=out)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(LIMIT)


@contextmanager
def _upstream() -> Iterator[tuple[str, list[str]]]:
    """A server of OpenAI's protocol: its URL, and the `traceparent` of each request that it answers."""
    parents: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(b'{"data":[]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            parents.append(self.headers["traceparent"])
            self._send(ANSWER)

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", parents
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
