"""One connected trace for each request, from its client through the gateway to upstreams and engines."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog

from gateway.app import create_app
from gateway.check import problems_of
from gateway.config import Config, Endpoint, ServedEntity, Telemetry
from gateway.observability.metrics import Metrics
from gateway.observability.telemetry import MISSING, is_wanted, start
from tests.faults.upstream import Asked, Pause, Play, Reset, Step, Upstream, response, upstream
from tests.gateway.http.observation.test_observer import STREAMED, WHOLE
from tests.gateway.observability.collector import collector
from tests.gateway.serving import MESSAGES, running

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{CLIENT}-01", "tracestate": "vendor=1"}
SPACED = tuple(step for part in STREAMED for step in (part, Pause(0.01)))  # each part is read by itself
CHAT = {"model": "chat", "messages": MESSAGES, "max_tokens": 9}


@asynccontextmanager
async def asking(play: Play, telemetry: Telemetry | None) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream]]:
    """A client of a gateway in front of an upstream. The spans are sent at the end."""

    def answer(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else play(asked)

    async with upstream(answer) as there:
        options = {"kind": "openai", "url": there.url, "timeouts": {"connect": 60.0}, "retries": {"base": 0.001}}
        endpoint = Endpoint(served_entities=(ServedEntity(name="arm", backend="far", model="m"),))
        backends = {"far": options, "s": {"kind": "scripted"}}
        bad = Endpoint(served_entities=(ServedEntity(name="bad-1", backend="s", model="error-after-3"),))
        app = create_app(Config(backends=backends, endpoints={"chat": endpoint, "bad": bad}, telemetry=telemetry))
        async with running(app) as client:
            yield client, there


def posted(there: Upstream) -> list[dict[str, str]]:
    return [asked.headers for asked in there.asked if asked.line.startswith("POST ")]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_client_gateway_and_upstream_are_one_trace(stream: bool) -> None:
    with collector() as received:
        async with asking(lambda _: SPACED if stream else (WHOLE,), Telemetry(endpoint=received.url)) as (
            client,
            there,
        ):
            asked = CHAT | {"stream": stream, "temperature": 0.5}
            with structlog.testing.capture_logs() as logs:
                answer = await client.post("/v1/chat/completions", json=asked, headers=TRACED)
            assert answer.status_code == 200
    assert [entry["trace_id"] for entry in logs if entry["event"] == "request.finished"] == [TRACE]
    assert {(span.trace, span.service) for span in received.spans} == {(TRACE, "interlingua")}
    server, sent = received.named("POST /v1/chat/completions"), received.named("chat m")
    assert len(received.spans) == 2
    assert (server.kind, server.parent) == ("SERVER", CLIENT)
    assert (sent.kind, sent.parent) == ("CLIENT", server.id)
    (headers,) = posted(there)
    assert headers["traceparent"] == f"00-{TRACE}-{sent.id}-01"
    assert headers["tracestate"] == "vendor=1"
    assert 0 < sent.seconds <= server.seconds
    answered = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 3 if stream else 2,
    }
    assert sent.attributes == answered | {
        "gen_ai.request.model": "m",
        "gen_ai.provider.name": "openai",
        "server.address": "127.0.0.1",
        "server.port": there.port,
        "http.response.status_code": 200,
        "interlingua.backend": "far",
    }
    shown = server.attributes
    assert (shown.pop("gen_ai.response.time_to_first_chunk", None) is not None) == stream
    assert shown == answered | {
        "gen_ai.request.model": "chat",
        "gen_ai.provider.name": "interlingua",
        "gen_ai.response.id": answer.headers["x-request-id"],
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "client.address": "127.0.0.1",
        "server.address": "localhost",
        "user_agent.original": client.headers["user-agent"],
        "interlingua.backend": "far",
        "interlingua.served_entity": "arm",
    }


async def test_each_attempt_has_a_span_of_its_own() -> None:
    first = iter([True])
    with collector() as received:
        play = lambda _: (Reset(),) if next(first, False) else (WHOLE,)  # noqa: E731
        async with asking(play, Telemetry(endpoint=received.url)) as (client, there):
            await client.post("/v1/chat/completions", json=CHAT, headers=TRACED)
    attempts = [span for span in received.spans if span.kind == "CLIENT"]
    failed, answered = sorted(attempts, key=lambda span: span.span.start_time_unix_nano)
    assert [headers["traceparent"].split("-")[2] for headers in posted(there)] == [failed.id, answered.id]
    assert failed.attributes["error.type"] == "upstream_reset"
    assert failed.span.status.code == 2
    assert "gen_ai.usage.input_tokens" not in failed.attributes
    assert answered.attributes["http.request.resend_count"] == 1
    assert answered.attributes["gen_ai.usage.input_tokens"] == 1


async def test_a_failure_is_named_and_a_wrong_request_is_the_clients() -> None:
    with collector() as received:
        async with asking(lambda _: (), Telemetry(endpoint=received.url)) as (client, _):
            broken = CHAT | {"model": "bad", "stream": True}
            assert (await client.post("/v1/chat/completions", json=broken)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=CHAT | {"model": "none"})).status_code == 404
            assert (await client.get("/v1/models", headers=TRACED)).status_code == 200
    broken_off, refused = (span for span in received.spans if span.name == "POST /v1/chat/completions")
    assert (broken_off.attributes["error.type"], broken_off.span.status.code) == ("backend_failed", 2)
    assert (refused.attributes["error.type"], refused.span.status.code) == ("model_not_found", 0)
    assert (refused.parent, broken_off.parent) == ("", "")
    assert received.named("GET /v1/models").parent == CLIENT


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "sample", "spans"), [("00", 1.0, 0), ("01", 0.0, 2), (None, 0.0, 0), (None, 1.0, 2)])
async def test_the_client_decides_on_sampling_and_else_the_ratio(flags: str | None, sample: float, spans: int) -> None:
    headers = {} if flags is None else {"traceparent": f"00-{TRACE}-{CLIENT}-{flags}"}
    with collector() as received:
        async with asking(lambda _: (WHOLE,), Telemetry(endpoint=received.url, sample=sample)) as (client, there):
            await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert len(received.spans) == spans
    (sent,) = posted(there)
    # What is not recorded is still one trace, and says so to the upstream.
    assert int(sent["traceparent"].split("-")[3], 16) & 1 == bool(spans)
    assert flags is None or sent["traceparent"].split("-")[1] == TRACE


@pytest.mark.slow
async def test_variables_of_opentelemetry_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        async with asking(lambda _: (WHOLE,), None) as (client, _):
            await client.post("/v1/chat/completions", json=CHAT)
    assert [span.service for span in received.spans] == ["edge", "edge"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hangs", "refuses"])
async def test_a_collector_in_trouble_slows_nobody(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr("gateway.observability.otlp.SHUTDOWN", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "hangs":  # the kernel accepts, and nobody reads
            listener.listen(64)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asking(lambda _: (WHOLE,), Telemetry(endpoint=url)) as (client, _):
            for _ in range(30):  # more spans than the queue holds
                assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("settings", "environment", "wanted"),
    [
        (None, {}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (None, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
        (Telemetry(), {}, True),
        (Telemetry(), {"OTEL_SDK_DISABLED": "True"}, False),
        (Telemetry(), {"OTEL_TRACES_EXPORTER": "none"}, False),
        (Telemetry(traces=False), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_traces_are_sent_where_somebody_asks_for_them(
    settings: Telemetry | None, environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted("traces", settings, environment) is wanted


@pytest.mark.parametrize(
    ("settings", "environment", "wanted"),
    [
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        (None, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, True),
        (None, {"OTEL_METRICS_EXPORTER": "otlp"}, True),
        (Telemetry(), {}, False),
        (Telemetry(metrics=True), {}, True),
        (Telemetry(metrics=True), {"OTEL_METRICS_EXPORTER": "none"}, False),
    ],
)
def test_metrics_are_sent_where_somebody_asks_for_them(
    settings: Telemetry | None, environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted("metrics", settings, environment) is wanted
    # Logs are, in the same way.
    for_logs = {name.replace("METRICS", "LOGS"): value for name, value in environment.items()}
    telemetry = None if settings is None else Telemetry(logs=settings.metrics)
    assert is_wanted("logs", telemetry, for_logs) is wanted


def test_variables_without_the_extra_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observability.telemetry.is_installed", lambda: False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    with structlog.testing.capture_logs() as logs:
        assert start(None, Metrics({})) == (None, None, None)
    assert [(entry["event"], entry["why"]) for entry in logs] == [("telemetry.not_started", MISSING)]


def test_the_section_without_the_extra_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.check.is_installed", lambda: False)
    assert [problem.text for problem in problems_of(Config(telemetry=Telemetry()))] == [f"telemetry: {MISSING}"]


@pytest.mark.slow
def test_nothing_of_opentelemetry_is_imported_unless_it_is_wanted() -> None:
    script = (
        "import sys; from gateway.app import create_app; from gateway.config import default; "
        "create_app(default()); import gateway.process.worker; "
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
