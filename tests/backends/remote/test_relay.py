"""Requests and answers pass unchanged between equal protocols, unknown fields included, except for model names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import running

MESSAGES = [{"role": "user", "content": "x", "x_cache": {"type": "ephemeral"}}]
UNKNOWN = {"x_custom": {"b": [1, 2.50, None], "a": "\u2028"}, "x_flag": True}

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": MESSAGES, "temperature": 0.5, **UNKNOWN}),
    "databricks": ("/serving-endpoints/m/invocations", {"messages": MESSAGES, "max_tokens": 5, **UNKNOWN}),
    "tgi": ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 5, "x_deep": 1}, **UNKNOWN}),
    "triton": ("/v2/models/m/generate", {"text_input": "x", "parameters": {"max_tokens": 5, "x_deep": 1}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ROUTES)
async def test_unknown_fields_of_requests_pass(protocol: str) -> None:
    path, body = ROUTES[protocol]

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),)

    async with upstream(play) as there:
        async with running(create_app(_config(protocol, there.url))) as client:
            await client.post(path, json=body)
        asked = [asked for asked in there.asked if asked.line.startswith("POST")][-1]
    sent = json.loads(asked.body)
    if protocol in ("openai", "databricks"):
        assert sent == body | ({"model": "renamed"} if protocol == "openai" else {})
    else:
        assert _within(body, sent), sent
    assert "renamed" in asked.line or protocol in ("openai", "tgi")


ANSWERS: dict[str, dict[str, Any]] = {
    "tgi": {
        "generated_text": "Hi",
        "details": {
            "finish_reason": "length",
            "generated_tokens": 1,
            "seed": None,
            "prefill": [],
            "tokens": [{"id": 7, "text": "Hi", "logprob": -0.5, "special": False, "x_rank": 3}],
            "x_timings": [1, 2.50],
        },
        "x_trace": "\u2028",
    },
    "triton": {
        "text_output": "Hi",
        "model_name": "renamed",
        "model_version": "1",
        "finish_reason": "length",
        "num_input_tokens": 3,
        "num_output_tokens": 1,
        "x_trace": "\u2028",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "path", "body", "removed"),
    [
        ("tgi", "/generate", {"inputs": "x", "parameters": {"details": True}}, set()),
        ("tgi", "/generate", {"inputs": "x"}, {"details"}),
        (
            "triton",
            "/v2/models/m/generate",
            {"text_input": "x"},
            {"finish_reason", "num_input_tokens", "num_output_tokens"},
        ),
        (
            "triton",
            "/v2/models/m/generate",
            {"text_input": "x", "return_finish_reason": True},
            {"num_input_tokens", "num_output_tokens"},
        ),
    ],
)
async def test_unknown_fields_of_whole_answers_pass(protocol: str, path: str, body: Any, removed: set[str]) -> None:
    answer = ANSWERS[protocol]

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(json.dumps(answer).encode()),)

    async with upstream(play) as there, running(create_app(_config(protocol, there.url))) as client:
        reply = await client.post(path, json=body)
    assert reply.json() == {name: value for name, value in answer.items() if name not in removed}


FRAMES: dict[str, tuple[dict[str, Any], ...]] = {
    "tgi": (
        {"index": 1, "token": {"id": 7, "text": "H", "logprob": -0.5, "special": False, "x_rank": 3}, "details": None},
        {
            "index": 2,
            "token": {"id": 8, "text": "i", "logprob": -0.5, "special": False},
            "generated_text": "Hi",
            "details": {"finish_reason": "length", "generated_tokens": 2, "seed": None, "input_length": 3, "x": 1},
            "x_trace": "\u2028",
        },
    ),
    "triton": (
        {"text_output": "H", "finish_reason": "None", "x_rank": 3},
        {"text_output": "i", "finish_reason": "length", "x_trace": "\u2028"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "path", "body", "removed"),
    [
        ("tgi", "/generate_stream", {"inputs": "x", "parameters": {"details": True}}, ""),
        ("triton", "/v2/models/m/generate_stream", {"text_input": "x"}, "finish_reason"),
    ],
)
async def test_unknown_fields_of_streams_pass(protocol: str, path: str, body: Any, removed: str) -> None:
    frames = FRAMES[protocol]
    body_bytes = b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(body_bytes, type="text/event-stream"),)

    async with upstream(play) as there, running(create_app(_config(protocol, there.url))) as client:
        reply = await client.post(path, json=body)
    received = [json.loads(frame.removeprefix("data:")) for frame in reply.text.split("\n\n") if frame]
    assert received == [{name: value for name, value in frame.items() if name != removed} for frame in frames]


def _config(protocol: str, url: str) -> Config:
    far = {"kind": protocol, "url": f"{url}/v1" if protocol == "openai" else url, "models": {"far-away": "renamed"}}
    entity = ServedEntity(name="m", backend="far", model="far-away")
    return Config(backends={"far": far}, endpoints={"m": Endpoint(served_entities=(entity,))})


def _within(small: Any, large: Any) -> bool:
    """Whether all of `small` is in `large`, which may have more fields."""
    if isinstance(small, dict):
        return all(name in large and _within(value, large[name]) for name, value in small.items())
    return bool(small == large)
