"""A filter in front of a model, through every protocol, whole and as a stream."""

from __future__ import annotations

from typing import Any

import pytest

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.check import problems_of
from gateway.config import Config, Endpoint, ServedEntity
from gateway.config.endpoint import Shadow, wrong_endpoint
from tests.gateway.serving import running

SECRET = "My number is 555-1234, call me."
MESSAGES = [{"role": "user", "content": SECRET}]
FILTERS: dict[str, dict[str, Any]] = {"pii": {"kind": "redact", "patterns": {"number": r"\d{3}-\d{4}"}}}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES}),
    "completions": ("/v1/completions", {"model": "chat", "prompt": SECRET}),
    "responses": ("/v1/responses", {"model": "chat", "input": SECRET}),
    "anthropic": ("/v1/messages", {"model": "chat", "messages": MESSAGES, "max_tokens": 99}),
    "gemini": ("/v1beta/models/chat:generateContent", {"contents": [{"parts": [{"text": SECRET}]}]}),
    "ollama": ("/api/chat", {"model": "chat", "messages": MESSAGES, "stream": False}),
    "tgi": ("/generate", {"inputs": SECRET}),
    "tgi compat": ("/", {"inputs": SECRET}),
    "triton": ("/v2/models/chat/generate", {"text_input": SECRET}),
    "databricks": ("/serving-endpoints/chat/invocations", {"messages": MESSAGES}),
}
STREAMS = {
    "gemini": "/v1beta/models/chat:streamGenerateContent",
    "tgi": "/generate_stream",
    "triton": "/v2/models/chat/generate_stream",
}


def config(**options: Any) -> Config:
    endpoint = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model="echo"),), filters=("pii",))
    filters = {"pii": FILTERS["pii"] | options}
    return Config(backends={"s": {"kind": "scripted"}}, endpoints={"chat": endpoint}, filters=filters)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", REQUESTS)
async def test_neither_the_model_nor_the_client_sees_what_is_replaced(protocol: str, stream: bool) -> None:
    path, body = REQUESTS[protocol]
    if stream:
        path = STREAMS.get(protocol, path)
        body = body if protocol in STREAMS else body | {"stream": True}
    # The scripted model echoes the prompt, one character a chunk; a filter of answers alone shows the other side.
    for sources in (["request"], ["answer"]):
        async with running(create_app(config(sources=sources), {"s": ScriptedBackend("s")})) as client:
            answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "555-1234" not in answer.text.replace(SECRET, "")
        if not stream:
            assert "[number]" in answer.text


@pytest.mark.slow
async def test_the_client_learns_in_its_protocol_that_its_request_is_refused() -> None:
    async with running(create_app(config(action="refuse"), {"s": ScriptedBackend("s")})) as client:
        refused = await client.post("/v1/chat/completions", json={"model": "chat", "messages": MESSAGES})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "content_filter"
        other = await client.post("/v1/messages", json=REQUESTS["anthropic"][1])
        assert other.status_code == 400
        assert other.json()["type"] == "error"


def test_a_filter_that_cannot_be_made_is_reported() -> None:
    def wrong(section: dict[str, Any], *names: str) -> list[str]:
        endpoint = Endpoint(served_entities=(ServedEntity(name="a", backend="s"),), filters=names)
        known = Config(backends={"s": {"kind": "scripted"}}, endpoints={"chat": endpoint}, filters={"pii": section})
        return [text for _, text in problems_of(known)]

    assert wrong(FILTERS["pii"], "pii") == []
    assert "there is no filter of kind 'redct'" in wrong({"kind": "redct"})[0]
    assert "patterns" in wrong({"kind": "redact"})[0]
    assert "patterns.x" in wrong({"kind": "redact", "patterns": {"x": "("}})[0]
    assert "on_failure" in wrong(FILTERS["pii"] | {"on_failure": "x"})[0]
    shadowed = Endpoint(
        served_entities=(
            ServedEntity(name="a", backend="s"),
            ServedEntity(name="b", backend="s", traffic_percentage=0, shadow=Shadow()),
        ),
        filters=("pii",),
    )
    assert "not filtered" in (wrong_endpoint(shadowed, ["s"]) or "")
