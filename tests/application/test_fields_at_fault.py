"""The field at fault in an error is one of the client's own request, whoever refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.upstream import response, upstream
from tests.gateway.serving import running

# Without the prompt's log-probabilities, which a TGI has to be started for. The others are asked nothing.
TGI = b'{"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": 1, "prefill": []}}'
LONG, IDS = "x" * 99, [[1], [2, 3]]
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/responses", {"input": LONG}, "short", "input"),
    ("/v1/embeddings", {"input": LONG}, "short", "input"),
    ("/v1/embeddings", {"input": IDS}, "ollama", "input"),
    ("/v1/completions", {"prompt": IDS}, "ollama", "prompt"),
    ("/v1/completions", {"prompt": "Hi", "echo": True, "logprobs": 1}, "tgi", "echo"),
    ("/v1/responses", {"input": "Hi", "include": ["message.output_text.logprobs"]}, "anthropic", "include"),
    ("/v1/responses", {"input": "Hi"}, "triton", "input"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "regex": "a"}, "anthropic", "regex"),
]


@pytest.mark.parametrize(("path", "body", "backend", "param"), REFUSED)
async def test_it_is_named(path: str, body: dict[str, Any], backend: str, param: str) -> None:
    arm = ServedEntity(name="a", backend=backend, model="echo")
    async with upstream(lambda _: (response(TGI),)) as there:
        remote = {"kind": backend, "url": there.url}
        options = {"kind": "scripted", "context_length": 3} if backend == "short" else remote
        app = create_app(Config(backends={backend: options}, endpoints={"m": Endpoint(served_entities=(arm,))}))
        async with running(app) as client:
            answer = await client.post(path, json={"model": "m", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
