"""The trace of a request that the project's own engine answers: its phases are spans below the gateway's."""

from __future__ import annotations

import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, Telemetry
from tests.gateway.observability.collector import collector
from tests.gateway.serving import MESSAGES, running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_queue_prefill_and_decode_are_spans_of_the_clients_trace() -> None:
    entity = ServedEntity(name="arm", backend="local")
    backends = {"local": {"kind": "native", "engine": "inprocess"}}
    endpoints = {"chat": Endpoint(served_entities=(entity,))}
    with collector() as received:
        telemetry = Telemetry(endpoint=received.url)
        async with running(create_app(Config(backends=backends, endpoints=endpoints, telemetry=telemetry))) as client:
            asked = {"model": "chat", "messages": MESSAGES, "max_tokens": 8, "n": 2}
            traced = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
            answer = await client.post("/v1/chat/completions", json=asked, headers=traced)
            assert answer.status_code == 200
            shown = (await client.get("/metrics")).text
    server = received.named("POST /v1/chat/completions")
    assert (server.trace, server.parent, server.kind) == (TRACE, CLIENT, "SERVER")
    engines = [span for span in received.spans if span.name.startswith("chat ")]
    assert {(span.parent, span.kind) for span in engines} == {(server.id, "INTERNAL")}
    assert (
        sum(span.attributes["gen_ai.usage.output_tokens"] for span in engines)
        == answer.json()["usage"]["completion_tokens"]
    )
    assert len(engines) == 2
    for engine in engines:
        phases = [span for span in received.spans if span.parent == engine.id]
        assert [span.name for span in sorted(phases, key=lambda span: span.span.end_time_unix_nano)] == [
            "queue",
            "prefill",
            "decode",
        ]
        assert sum(span.seconds for span in phases) == pytest.approx(engine.seconds)
        assert server.span.start_time_unix_nano < engine.span.start_time_unix_nano
        assert engine.span.end_time_unix_nano < server.span.end_time_unix_nano
    labels = '{backend="local",model_name="chat",served="arm"}'
    for phase in ("queue", "prefill", "decode", "inference"):
        assert f"vllm:request_{phase}_time_seconds_count{labels} 2.0" in shown
