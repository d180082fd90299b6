"""Embedding endpoints through the application: every route, both arms, rejected requests."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from litestar import Litestar

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from gateway.routing.assignment import assign
from tests.backends.native.encoders import CASES, GOLDEN, TEXTS, build
from tests.gateway.serving import listening, running

pytestmark = pytest.mark.torch

ARMS = {"current": "bert, mean", "challenger": "xlm-roberta, prompts"}
CHATS = (
    ("/v1/chat/completions", 400, {"model": "vectors", "messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/completions", 400, {"model": "vectors", "prompt": "Hi"}),
    ("/v1/responses", 400, {"model": "vectors", "input": "Hi"}),
    ("/v1/messages", 400, {"model": "vectors", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}),
    ("/serving-endpoints/vectors/invocations", 400, {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v2/models/vectors/generate", 501, {"text_input": "Hi"}),
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Two encoders behind one endpoint, without a configured task."""
    options = {"kind": "native", "engine": "inprocess", "dtype": "float32", "device": "cpu", "threads": 1}
    backends = {arm: options | {"model": str(build(tmp_path / arm, CASES[case]))} for arm, case in ARMS.items()}
    entities = tuple(ServedEntity(name=arm, backend=arm, traffic_percentage=50) for arm in ARMS)
    return Config(backends=backends, endpoints={"vectors": Endpoint(served_entities=entities)})


@asynccontextmanager
async def both_arms(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, yielded when all arms can answer."""
    async with running(app) as client:
        await all_ready(app)
        yield client


async def all_ready(app: Litestar) -> None:
    while any(health.status == "loading" for health in app.state.service.backend_health.states.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_every_route(config: Config) -> None:
    golden = json.loads(GOLDEN.read_text())
    async with both_arms(create_app(config)) as client:
        units = {arm: next(u for u in map(str, range(99)) if assign("vectors", _HALF, u) == arm) for arm in ARMS}
        for arm, case in ARMS.items():
            headers = {"x-ab-unit": units[arm]}
            for path in ("/v1/embeddings", "/serving-endpoints/embeddings", "/serving-endpoints/vectors/invocations"):
                body = {"model": "vectors", "input": TEXTS}
                answer = await client.post(path, json=body, headers=headers)
                assert (answer.status_code, answer.headers["served-model-name"]) == (200, arm)
                _close(answer.json(), golden[case])
                packed = await client.post(path, json=body | {"encoding_format": "base64"}, headers=headers)
                _close(packed.json(), golden[case])
                assert packed.json()["usage"] == answer.json()["usage"]
        body = {"input": list(TEXTS), "instruction": "query"}
        path = "/serving-endpoints/vectors/served-models/challenger/invocations"
        _close((await client.post(path, json=body)).json(), golden["xlm-roberta, a prompt"])


async def test_an_encoder_is_listed_as_embeddings_and_rejects_chats_and_long_inputs(config: Config) -> None:
    async with both_arms(create_app(config)) as client:
        (listed,) = (await client.get("/api/2.0/serving-endpoints")).json()["endpoints"]
        retrieved = (await client.get("/api/2.0/serving-endpoints/vectors")).json()
        assert [listed["task"], retrieved["task"]] == ["llm/v1/embeddings"] * 2
        for path, status, body in CHATS:
            answer = await client.post(path, json=body)
            assert (answer.status_code, "makes embeddings, and no text" in answer.text) == (status, True), path
        answer = await client.post("/v1/embeddings", json={"model": "vectors", "input": ["a", "b" * 120]})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert answer.json()["error"]["message"].startswith("This model's maximum context length is 100 tokens.")
        answer = await client.post("/serving-endpoints/vectors/invocations", json={"input": "b" * 120})
        assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")


async def test_an_embeddings_endpoint_rejects_chats_even_if_the_model_could_generate() -> None:
    arm = ServedEntity(name="a", backend="s", model="echo")
    config = Config(
        backends={"s": {"kind": "scripted"}}, endpoints={"vectors": Endpoint(served_entities=(arm,), task="embeddings")}
    )
    async with running(create_app(config)) as client:
        for path, status, body in CHATS:
            answer = await client.post(path, json=body)
            assert (answer.status_code, "is for embeddings" in answer.text) == (status, True), path
        assert (await client.post("/v1/embeddings", json={"model": "vectors", "input": "Hi"})).status_code == 200


async def test_a_model_without_embeddings_rejects_embedding_requests() -> None:
    arm = ServedEntity(name="a", backend="s", model="echo")
    backends = {"s": {"kind": "scripted", "embeddings": False}}
    async with running(create_app(Config(backends=backends, endpoints={"m": Endpoint(served_entities=(arm,))}))) as c:
        answer: httpx.Response = await c.post("/v1/embeddings", json={"model": "m", "input": "Hi"})
        assert (answer.status_code, "has no embeddings" in answer.text) == (400, True)


_HALF = dict.fromkeys(ARMS, 50.0)


def _close(answer: dict[str, Any], golden: list[list[float]]) -> None:
    vectors = [entry["embedding"] for entry in answer["data"]]
    unpacked = [
        torch.frombuffer(bytearray(base64.b64decode(vector)), dtype=torch.float32)
        if isinstance(vector, str)
        else torch.tensor(vector)
        for vector in vectors
    ]
    torch.testing.assert_close(torch.stack(unpacked), torch.tensor(golden), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["openai", "databricks"])
async def test_embeddings_through_a_remote_gateway(kind: str, config: Config) -> None:
    """Every route for embeddings, over both kinds of remote; if both ends use one protocol, the bytes are relayed."""
    app = create_app(config)
    async with listening(app) as port:
        await all_ready(app)
        url = f"http://127.0.0.1:{port}" + ("/v1" if kind == "openai" else "")
        arm = ServedEntity(name="far", backend="far", model="vectors:current")
        far = Config(backends={"far": {"kind": kind, "url": url}}, endpoints={"v": Endpoint(served_entities=(arm,))})
        async with running(create_app(far)) as client:
            golden = json.loads(GOLDEN.read_text())[ARMS["current"]]
            for path in ("/v1/embeddings", "/serving-endpoints/v/invocations"):
                for encoding in ("float", "base64"):
                    body = {"model": "v", "input": TEXTS, "encoding_format": encoding}
                    answer = await client.post(path, json=body)
                    assert answer.status_code == 200, answer.text
                    _close(answer.json(), golden)
                    assert answer.json()["usage"]["prompt_tokens"] > 50
                refused = await client.post(path, json={"model": "v", "input": "b" * 120})
                assert (refused.status_code, "maximum context length" in refused.text) == (400, True)
            instructed = await client.post(
                "/serving-endpoints/v/invocations", json={"input": "Hi", "instruction": "find:"}
            )
            assert instructed.status_code == (400 if kind == "openai" else 200)
            assert "gw_" in (await client.get("/metrics")).text


async def test_embeddings_fail_over_if_the_remote_is_unreachable() -> None:
    arm = ServedEntity(name="far", backend="far")
    far = Config(
        backends={"far": {"kind": "openai", "url": "http://127.0.0.1:1/v1"}, "s": {"kind": "scripted"}},
        endpoints={
            "v": Endpoint(
                served_entities=(arm, ServedEntity(name="near", backend="s", model="echo", traffic_percentage=0))
            )
        },
    )
    app = create_app(far)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        answer = await client.post("/v1/embeddings", json={"model": "v", "input": "Hi"})
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "near")
