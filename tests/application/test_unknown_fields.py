"""Unknown fields of requests: named in a header and counted, refused where the server is strict, or passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.unknown_fields import IGNORED
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, ServerSection, parse
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import listening, running, scripted

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two"}]}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "echo", "prompt": "one two"},
    "/v1/responses": {"model": "echo", "input": "one two"},
    "/v1/messages": CHAT | {"max_tokens": 5},
    "/generate": {"inputs": "one two"},
    "/v2/models/echo/generate": {"text_input": "one two"},
    "/serving-endpoints/echo/invocations": CHAT,
}


@pytest.mark.slow
@pytest.mark.parametrize("path", REQUESTS)
async def test_an_unknown_field_is_named_and_counted(path: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        plain = await client.post(path, json=REQUESTS[path])
        warned = await client.post(path, json=REQUESTS[path] | {"temprature": 0.5, "max_tokns": 3})
        metrics = (await client.get("/metrics")).text
    assert (plain.status_code, warned.status_code) == (200, 200)
    assert IGNORED not in plain.headers
    assert warned.headers[IGNORED] == "temprature, max_tokns"
    assert next(line for line in metrics.splitlines() if line.startswith("gw_ignored_fields_total{")).endswith(" 2.0")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
async def test_streams_have_the_header_too(stream: bool) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        messages = [{"role": "user", "content": "one", "nmae": "x"}]
        answer = await client.post("/v1/chat/completions", json=CHAT | {"messages": messages, "stream": stream})
    assert answer.headers[IGNORED] == "messages[0].nmae"


@pytest.mark.slow
async def test_items_of_a_response_come_back_to_a_strict_server() -> None:
    app, _ = scripted("echo", server=ServerSection(strict=True))
    async with running(app) as client:
        asked: dict[str, Any] = {"model": "echo", "input": [{"role": "user", "content": "one"}], "store": False}
        answer = await client.post("/v1/responses", json=asked | {"include": ["message.output_text.logprobs"]})
        items = [*asked["input"], *answer.json()["output"], {"role": "user", "content": "two"}]
        fields = {"input": items, "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}
        again = await client.post("/v1/responses", json=asked | fields)
    assert answer.json()["output"][0]["status"] == "completed"
    assert again.status_code == 200, again.text
    assert again.headers[IGNORED] == "prompt_cache_options, prompt_cache_retention"


@pytest.mark.slow
@pytest.mark.parametrize("path", REQUESTS)
async def test_a_strict_server_refuses_it(path: str) -> None:
    app, _ = scripted("echo", server=ServerSection(strict=True))
    async with running(app) as client:
        assert (await client.post(path, json=REQUESTS[path])).status_code == 200
        refused = await client.post(path, json=REQUESTS[path] | {"temprature": 0.5})
    assert refused.status_code in (400, 422)
    assert "temprature" in refused.text


async def test_strictness_of_one_dialect_goes_before_the_servers() -> None:
    server = ServerSection(strict=True, dialect_options={"openai": {"strict": False}})
    app, _ = scripted("echo", server=server)
    async with running(app) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT | {"temprature": 1})
    assert answer.headers[IGNORED] == "temprature"


@pytest.mark.slow
async def test_what_a_remote_of_the_same_dialect_gets_is_not_named() -> None:
    far, _ = scripted("echo")
    async with listening(far) as port:
        text = f"""
            [backends.far]
            kind = "openai"
            url = "http://127.0.0.1:{port}/v1"
            [endpoints.echo]
            served_entities = [{{ name = "a", backend = "far" }}]
        """
        async with running(create_app(parse(text))) as client:
            asked = CHAT | {"temprature": 1}
            same = await client.post("/v1/chat/completions", json=asked)
            other = await client.post("/v1/messages", json=asked | {"max_tokens": 5})
            own = await client.post("/v1/chat/completions", json=CHAT | {"use_beam_search": True})
            foreign = await client.post("/v1/messages", json=CHAT | {"max_tokens": 5, "container": "x"})
    assert (own.status_code, own.json()["error"]["param"]) == (400, "use_beam_search")  # the far server's words
    assert "use_beam_search" in own.json()["error"]["message"]
    assert foreign.status_code == 400
    assert same.status_code == 200
    assert IGNORED not in same.headers
    assert other.headers[IGNORED] == "temprature"


async def test_a_known_field_that_no_backend_here_honours_is_refused_by_name() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        refused = await client.post("/v1/chat/completions", json=CHAT | {"use_beam_search": True})
        taken = await client.post("/v1/chat/completions", json=CHAT | {"use_beam_search": False})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "use_beam_search")
    assert taken.status_code == 200
    assert IGNORED not in taken.headers


TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}
ASKS: dict[str, dict[str, Any]] = {
    "verbosity": {"verbosity": "low"},
    "service_tier": {"service_tier": "flex"},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "messages[].name": {"messages": [{"role": "user", "content": "Hi", "name": "ann"}]},
    "tools[].strict": {"tools": [TOOL]},
    "messages[].content[].image_url.detail": {"messages": [{"role": "user", "content": [IMAGE]}]},
}


@pytest.mark.slow
async def test_what_an_upstream_has_no_field_for_is_named() -> None:
    anthropic = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    }
    openai = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(json.dumps(anthropic if "/messages" in asked.line else openai).encode()),)

    async with upstream(play) as there:
        backends = {kind: {"kind": kind, "url": there.url} for kind in ("anthropic", "openai")}
        endpoints = {
            kind: Endpoint(served_entities=(ServedEntity(name=kind, backend=kind, model="m"),)) for kind in backends
        }
        async with running(create_app(Config(backends=backends, endpoints=endpoints))) as client:
            for place, fields in ASKS.items():
                written = await client.post("/v1/chat/completions", json=CHAT | fields | {"model": "anthropic"})
                relayed = await client.post("/v1/chat/completions", json=CHAT | fields | {"model": "openai"})
                assert (written.status_code, written.headers[IGNORED]) == (200, place)
                assert relayed.status_code == 200
                assert IGNORED not in relayed.headers
