"""The header that marks answers whose token ids may not be the model's own, for several kinds of upstreams.

The upstream is another gateway, whose ids are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.recorded import MOUNTED, SERVER
from tests.gateway.serving import listening, scripted

pytestmark = pytest.mark.slow

MARK = "x-interlingua-token-ids"
TOKENIZER = {"tokenizer": "backends/native/demo/weights"}
LIMIT = {"max_new_tokens": 9}
PLAIN = {"inputs": "Hello you", "parameters": LIMIT}
DETAILS = {"inputs": "Hello you", "parameters": {"details": True} | LIMIT}
SCORED = {"text_input": "Hello you", "parameters": {"logprobs": 0}, "return_logprobs": True}
TENSORS = {
    "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hello you"]}],
    "outputs": [{"name": "text_output"}, {"name": "logprobs"}],
}
CHAT = {"messages": [{"role": "user", "content": "Hello you"}], "logprobs": True}
MODEL = "/v2/models/echo"

Ask = tuple[str, dict[str, Any]]
WITH_IDS: dict[str, Ask] = {
    "tgi": ("/generate", DETAILS),
    "tgi streamed": ("/generate_stream", DETAILS),
    "tgi streamed without details": ("/generate_stream", PLAIN),
    "mindie streamed": ("/mindie/generate_stream", DETAILS),
    "triton": (f"{MODEL}/generate", SCORED),
    "triton streamed": (f"{MODEL}/generate_stream", SCORED | {"stream": True}),
    "triton tensors": (f"{MODEL}/infer", TENSORS),
}
UNSCORED = [WITH_IDS["tgi streamed without details"], WITH_IDS["mindie streamed"]]
"""Requests whose answers need ids and that do not ask for log-probabilities."""
WITHOUT: dict[str, Ask] = {
    "tgi without details": ("/generate", PLAIN),
    "triton": (f"{MODEL}/generate", {"text_input": "Hello you"}),
    "triton streamed": (f"{MODEL}/generate_stream", {"text_input": "Hello you"}),
    "openai": ("/v1/chat/completions", CHAT | {"model": "echo"}),
    "openai streamed": ("/v1/chat/completions", CHAT | {"model": "echo", "stream": True}),
    "databricks": ("/serving-endpoints/echo/invocations", CHAT),
}


@asynccontextmanager
async def over(kind: str, url: str | None = None, **options: Any) -> AsyncIterator[str]:
    """The URL of a gateway in front of a server of that kind, which is another gateway."""
    if url is None:
        inner, _ = scripted("echo", server=SERVER)
        async with listening(inner) as port, over(kind, f"http://127.0.0.1:{port}", **options) as outer:
            yield outer
        return
    far = {"kind": kind, "url": url + MOUNTED.get(kind, "")} | options
    endpoint = Endpoint(served_entities=(ServedEntity(name="far", backend="far"),))
    served = Config(server=SERVER, backends={"far": far}, endpoints={"echo": endpoint})
    async with listening(create_app(served)) as port:
        yield f"http://127.0.0.1:{port}"


async def asked(url: str, ask: Ask) -> httpx.Response:
    path, body = ask
    async with httpx.AsyncClient(verify=False) as client:  # no certificates to load
        reply = await client.post(url + path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


def ids_of(reply: httpx.Response) -> set[int]:
    """All token ids of an answer: TGI's `id` fields, and the keys of Triton's log-probabilities."""
    return {int(id) for id in re.findall(r'"id": ?(\d+)|\\"(-?\d+)\\": ?{', reply.text) for id in id if id}


@pytest.mark.parametrize(
    ("kind", "options", "mark"),
    [
        ("openai", {}, "synthetic"),
        ("databricks", {}, "synthetic"),
        ("openai", TOKENIZER, "retokenised"),
        ("tgi", {}, None),
        ("triton", {}, None),
    ],
)
async def test_ids_that_are_not_the_models_are_marked(kind: str, options: dict[str, Any], mark: str | None) -> None:
    async with over(kind, **options) as url:
        for name, ask in WITH_IDS.items():
            if (kind == "triton" and ask in UNSCORED) or (kind, name) == ("databricks", "mindie streamed"):
                continue  # see below; Databricks takes no seed, and MindIE always has one
            reply = await asked(url, ask)
            assert (name, reply.headers.get(MARK)) == (name, mark)
            found = ids_of(reply)
            assert found, name
            if mark == "synthetic":
                assert max(found) <= 0, name
            else:
                assert max(found) > 0, name
        for name, ask in WITHOUT.items():
            if not (kind == "triton" and "messages" in ask[1]):
                assert (name, MARK in (await asked(url, ask)).headers) == (name, False)


@pytest.mark.parametrize("ask", UNSCORED)
async def test_triton_returns_ids_with_log_probabilities_only(ask: Ask) -> None:
    async with over("triton") as url:
        reply = await asked(url, ask)
    assert reply.headers[MARK] == "synthetic"
    frames = [json.loads(line.removeprefix("data:")) for line in reply.text.split("\n\n") if line]
    assert {frame["token"]["id"] for frame in frames} == {0}


@pytest.mark.parametrize("kind", ["tgi", "triton", "openai"])
async def test_a_gateway_forwards_the_mark_of_its_upstream(kind: str) -> None:
    """Also to clients of the upstream's protocol, whose bytes are relayed unchanged."""
    async with over("openai") as inner, over(kind, inner) as url:
        for name, ask in WITH_IDS.items():
            if kind != "triton" or ask not in UNSCORED:
                assert (name, (await asked(url, ask)).headers.get(MARK)) == (name, "synthetic")
