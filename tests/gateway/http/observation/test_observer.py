"""What backends tell of their work: attempts, retries and phases of engines, and the headers that upstreams get."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar import Litestar

from backends.observation import Phases
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from gateway.http.accounting import RequestAccount
from gateway.http.observation.observer import RequestObserver, outcome_of
from gateway.observability.trace_context import trace_headers, trace_id
from schemas.errors import BackendUnavailable, Fault, Overloaded
from tests.faults.upstream import END, STREAM, Asked, Play, Reset, Step, Upstream, chunk, response, upstream
from tests.gateway.serving import MESSAGES, running, scripted

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = {"model": "chat", "messages": MESSAGES}
WHOLE = response(
    b'{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
)
STREAMED = (
    STREAM,
    *(
        chunk(b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % word)
        for word in (b"one", b"two", b"three")
    ),
    chunk(b'data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'),
    chunk(b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}\n\n'),
    chunk(b"data: [DONE]\n\n"),
    END,
)


@asynccontextmanager
async def asking(play: Play) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream, Litestar]]:
    """A client of a gateway in front of an upstream."""

    def answer(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else play(asked)

    async with upstream(answer) as there:
        options = {"kind": "openai", "url": there.url, "timeouts": {"connect": 60.0}, "retries": {"base": 0.001}}
        entity = ServedEntity(name="arm", backend="far", model="m")
        app = create_app(Config(backends={"far": options}, endpoints={"chat": Endpoint(served_entities=(entity,))}))
        async with running(app) as client:
            yield client, there, app


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"(?m)^([^# ].*) (\S+)$", text)}


@pytest.mark.slow
async def test_attempts_are_counted_with_their_outcomes_and_retries() -> None:
    first = iter([True])
    async with asking(lambda _: (Reset(),) if next(first, False) else (WHOLE,)) as (client, _, _):
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        found = await metrics(client)
    assert found['gw_upstream_attempts_total{backend="far",outcome="upstream_reset"}'] == 1.0
    assert found['gw_upstream_attempts_total{backend="far",outcome="ok"}'] == 1.0
    assert found['gw_upstream_retries_total{backend="far"}'] == 1.0
    assert found['gw_upstream_latency_seconds_count{backend="far"}'] == 1.0
    assert found['gw_backend_up{backend="far"}'] == 1.0
    assert found['gw_backend_breaker_open{backend="far"}'] == 0.0


@pytest.mark.slow
async def test_the_time_between_chunks_of_a_remote_stream_is_counted() -> None:
    async with asking(lambda _: STREAMED) as (client, _, _):
        answer = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        assert "three" in answer.text
        found = await metrics(client)
    labels = '{backend="far",model_name="chat",served="arm"}'
    # Chunks that arrive together are one batch: at most one interval between each two words.
    assert found.get(f"vllm:inter_token_latency_seconds_count{labels}", 0.0) <= 2.0
    assert found[f"vllm:request_generation_tokens_sum{labels}"] == 3.0
    reason = 'backend="far",finished_reason="stop",model_name="chat",served="arm"'
    assert found[f"vllm:request_success_total{{{reason}}}"] == 1.0


async def test_intervals_are_counted_from_one_output_to_the_next() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        asked = {"model": "echo", "messages": [{"role": "user", "content": "one two three four"}], "stream": True}
        await client.post("/v1/chat/completions", json=asked)
        found = await metrics(client)
    (count,) = [value for name, value in found.items() if name.startswith("vllm:inter_token_latency_seconds_count")]
    (tokens,) = [value for name, value in found.items() if name.startswith("vllm:generation_tokens_total")]
    assert 0 < count < tokens


async def test_without_a_part_in_it_the_trace_is_passed_on_unchanged() -> None:
    async with asking(lambda _: (WHOLE,)) as (client, there, _):
        traced = {"traceparent": PARENT, "tracestate": "vendor=1,other=2"}
        await client.post("/v1/chat/completions", json=CHAT, headers=traced)
        await client.post("/v1/chat/completions", json=CHAT)
        sent = [asked.headers for asked in there.asked if asked.line.startswith("POST ")]
    assert [headers.get("traceparent") for headers in sent] == [PARENT, None]
    assert [headers.get("tracestate") for headers in sent] == ["vendor=1,other=2", None]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        PARENT + "\x00",
        PARENT + "ä",
    ],
)
def test_a_wrong_traceparent_is_ignored(parent: str) -> None:
    assert trace_headers({"traceparent": parent, "tracestate": "a=1"}) == ()


def test_a_later_version_is_passed_on_and_a_wrong_state_is_not() -> None:
    later = PARENT.replace("00-", "01-", 1) + "-more"
    assert trace_headers({"traceparent": later}) == (("traceparent", later),)
    assert (trace_id(trace_headers({"traceparent": later})), trace_id(())) == ("0af7651916cd43dd8448eb211c80319c", None)
    assert trace_headers({"traceparent": PARENT, "tracestate": "ä=1"}) == (("traceparent", PARENT),)
    assert trace_headers({"traceparent": PARENT, "tracestate": "a" * 513}) == (("traceparent", PARENT),)


def test_the_phases_of_a_sequence_are_counted() -> None:
    app, _ = scripted("echo")
    service = app.state.service
    account = RequestAccount(service, "openai", "chat", "1")
    RequestObserver(account).engine_ran([Phases(1.0, 1.5, 3.5, 7.5, 5), Phases(1.0, 2.0, 3.0, 3.0, 1)])
    shown = service.metrics.render().decode()
    labels = '{backend="",model_name="",served=""}'
    for name, total in (("queue", 1.5), ("prefill", 3.0), ("decode", 4.0), ("inference", 7.0)):
        assert f"vllm:request_{name}_time_seconds_sum{labels} {total}" in shown
        assert f"vllm:request_{name}_time_seconds_count{labels} 2.0" in shown


def test_an_attempt_ends_with_a_fault_a_kind_or_a_cancellation() -> None:
    errors = [None, BackendUnavailable("x", fault=Fault.CONNECT), Overloaded("x"), GeneratorExit(), ValueError()]
    assert list(map(outcome_of, errors)) == ["ok", "upstream_connect", "overloaded", "cancelled", "internal"]
