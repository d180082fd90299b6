"""Same protocol on both sides: nothing but the model's name changes on the way in, fields nobody knows included."""

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


@pytest.mark.parametrize("protocol", ROUTES)
async def test_unknown_fields_arrive(protocol: str) -> None:
    path, body = ROUTES[protocol]

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),)

    async with upstream(play) as there:
        url = f"{there.url}/v1" if protocol == "openai" else there.url
        far = {"kind": protocol, "url": url, "models": {"far-away": "renamed"}}
        entity = ServedEntity(name="m", backend="far", model="far-away")
        config = Config(backends={"far": far}, endpoints={"m": Endpoint(served_entities=(entity,))})
        async with running(create_app(config)) as client:
            await client.post(path, json=body)
        asked = [asked for asked in there.asked if asked.line.startswith("POST")][-1]
    sent = json.loads(asked.body)
    if protocol in ("openai", "databricks"):
        assert sent == body | ({"model": "renamed"} if protocol == "openai" else {})
    else:
        assert _within(body, sent), sent
    assert "renamed" in asked.line or protocol in ("openai", "tgi")


def _within(small: Any, large: Any) -> bool:
    """Whether all of `small` is in `large`, which may say more."""
    if isinstance(small, dict):
        return all(name in large and _within(value, large[name]) for name, value in small.items())
    return bool(small == large)
