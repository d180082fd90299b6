"""A filter in front of a model, through every protocol, whole and as a stream."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.check import problems_of
from gateway.config import Config, Endpoint, ServedEntity
from gateway.config.endpoint import Shadow, wrong_endpoint
from gateway.filters.base import Edit, Source
from gateway.filters.redact import Redact
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
OVERLOADED = {"anthropic": (529, "overloaded_error"), "tgi": (429, "overloaded"), "tgi compat": (429, "overloaded")}
"""The status and a word of a failure on the server's side, where it is not a 503 with its text."""


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


@pytest.mark.parametrize("protocol", REQUESTS)
async def test_the_client_learns_in_its_protocol_that_a_filter_fails(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def fail(_: Redact, text: str, __: Source) -> list[Edit]:
        if "raise" in text:
            raise RuntimeError("no")
        release.wait(60)
        return []

    monkeypatch.setattr(Redact, "edits", fail)
    filtered = config(timeout=0.05)
    plain = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model="echo"),))
    both = replace(filtered, endpoints=filtered.endpoints | {"plain": plain})
    path, body = REQUESTS[protocol]
    async with running(create_app(both, {"s": ScriptedBackend("s")})) as client:
        for text in ("raise", *["hang"] * 5):  # more often than the filter has threads
            refused = await client.post(path, json=json.loads(json.dumps(body).replace(SECRET, text)))
            status, word = OVERLOADED.get(protocol, (503, "The filter 'pii' has failed."))
            assert (refused.status_code, word in refused.text) == (status, True), refused.text
        unharmed = await client.post("/v1/chat/completions", json={"model": "plain", "messages": MESSAGES})
        assert unharmed.status_code == 200
    release.set()


async def test_a_stream_whose_filter_fails_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_late(_: Redact, text: str, source: Source) -> list[Edit]:
        if source == "answer" and "late" in text:
            raise RuntimeError("no")
        return []

    monkeypatch.setattr(Redact, "edits", fail_late)
    messages = [{"role": "user", "content": "word " * 100 + "late"}]
    body = {"model": "chat", "messages": messages, "max_tokens": 999, "stream": True}
    async with running(create_app(config(), {"s": ScriptedBackend("s")})) as client:
        for path, error in (("/v1/chat/completions", '"code":"filter_failed"'), ("/v1/messages", "overloaded_error")):
            answer = await client.post(path, json=body)
            assert (answer.status_code, "word" in answer.text) == (200, True)
            assert error in answer.text.rstrip().rsplit("data: ", 1)[1]


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
