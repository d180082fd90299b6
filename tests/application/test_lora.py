"""LoRA adapters through the application: selected by `adapter_id`, or as the model of a served entity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from backends.base import Capabilities, Health
from backends.native.backend import NativeBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, Shadow, parse
from gateway.deployment.deployments import changed
from gateway.registry import make_backends
from gateway.routing.target import Target
from schemas.catalog import Change
from schemas.catalog import ServedEntity as Entity
from schemas.errors import ModelNotFound
from schemas.ir import Embed, TextPrompt, Tokenize
from tests.backends.native.fake_engine import READY, FakeEngine
from tests.gateway.serving import running, unit_for

pytestmark = pytest.mark.torch

MESSAGES = [{"role": "user", "content": "Hi"}]


def arm(name: str, model: str | None, share: int = 100, shadow: Shadow | None = None) -> ServedEntity:
    return ServedEntity(name=name, backend="local", model=model, traffic_percentage=share, shadow=shadow)


ENDPOINTS = {
    "chat": Endpoint(served_entities=(arm("base", None),)),
    "support": Endpoint(served_entities=(arm("support-1", "team/support"),)),
    "both": Endpoint(served_entities=(arm("a", "team/support", 50), arm("b", "sql", 50))),
    "mixed": Endpoint(served_entities=(arm("a", None, 50), arm("b", "sql", 50))),
    "sql": Endpoint(served_entities=(arm("base", None),)),  # called as a LoRA adapter is, and none
    "typo": Endpoint(served_entities=(arm("typo", "suport"),)),
    "shadowed": Endpoint(served_entities=(arm("a", None), arm("b", "sql", 0, Shadow()))),
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(ready=msgspec.structs.replace(READY, lora_adapters=("team/support", "sql"), embedding_size=4))


@asynccontextmanager
async def serving(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    backend = NativeBackend("local", {"heartbeat": 0.01}, connect=engine.connect)
    config = Config(backends={"local": {"kind": "native"}}, endpoints=ENDPOINTS)
    async with running(create_app(config, {"local": backend})) as client:
        yield client


def tgi(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "Hi", "parameters": {"max_new_tokens": 2} | parameters}


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, "max_tokens": 2}


TRITON = {"text_input": "Hi", "parameters": {"max_tokens": 2}}


@pytest.mark.parametrize(
    ("path", "body", "lora_adapter"),
    [
        ("/generate", tgi(), ""),
        ("/generate", tgi(adapter_id="sql"), "sql"),
        ("/generate_stream", tgi(adapter_id="team/support"), "team/support"),
        ("/v1/chat/completions", chat("chat"), ""),
        ("/v1/chat/completions", chat("sql"), ""),
        ("/v1/chat/completions", chat("support"), "team/support"),
        ("/v1/chat/completions", chat("both:b"), "sql"),
        ("/v1/completions", {"model": "support", "prompt": "Hi", "max_tokens": 2}, "team/support"),
        ("/v1/messages", chat("support"), "team/support"),
        ("/serving-endpoints/support/invocations", {"messages": MESSAGES, "max_tokens": 2}, "team/support"),
        ("/v2/models/support/generate", TRITON, "team/support"),
        ("/v2/models/chat/generate", TRITON | {"parameters": {"max_tokens": 2, "lora_name": "sql"}}, "sql"),
        ("/v2/models/support/generate", TRITON | {"parameters": {"max_tokens": 2, "lora_name": "sql"}}, "sql"),
    ],
)
async def test_a_request_is_generated_with_its_lora_adapter(
    path: str, body: Any, lora_adapter: str, engine: FakeEngine
) -> None:
    async with serving(engine) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert [submit.lora_adapter for submit in engine.submitted] == [lora_adapter]


async def test_arms_of_one_endpoint_are_lora_adapters_of_one_engine(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        for name, lora_adapters in (("both", ("team/support", "sql")), ("mixed", ("", "sql"))):
            for served, lora_adapter in zip("ab", lora_adapters, strict=True):
                unit = {"x-ab-unit": unit_for(served, name)}
                answer = await client.post("/v1/chat/completions", json=chat(name), headers=unit)
                assert answer.headers["served-model-name"] == served
                assert engine.submitted[-1].lora_adapter == lora_adapter


async def test_a_shadow_can_be_a_lora_adapter(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        await client.post("/v1/chat/completions", json=chat("shadowed"))
        for _ in range(500):
            if len(engine.submitted) == 2:
                break
            await asyncio.sleep(0.01)
        assert sorted(submit.lora_adapter for submit in engine.submitted) == ["", "sql"]


async def test_all_choices_of_a_request_use_its_lora_adapter(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        await client.post("/v1/completions", json={"model": "support", "prompt": ["a", "b"], "n": 2, "max_tokens": 2})
        assert [submit.lora_adapter for submit in engine.submitted] == ["team/support"] * 4


UNKNOWN = "has no LoRA adapter 'none'."


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        (
            "/generate",
            tgi(adapter_id="none"),
            422,
            {"error": f"Input validation error: The model 'chat' {UNKNOWN}", "error_type": "validation"},
        ),
        (
            "/generate_stream",
            tgi(adapter_id="none"),
            422,
            {"error": f"Input validation error: The model 'chat' {UNKNOWN}", "error_type": "validation"},
        ),
        (
            "/v2/models/chat/generate",
            TRITON | {"parameters": {"lora_name": "none"}},
            400,
            {"error": f"The model 'chat' {UNKNOWN}"},
        ),
        (
            "/v1/chat/completions",
            chat("typo"),
            404,
            {
                "error": {
                    "message": "The backend 'local' has no LoRA adapter 'suport'.",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_not_found",
                }
            },
        ),
    ],
)
async def test_an_unknown_lora_adapter_is_rejected_before_generation(
    path: str, body: Any, status: int, expected: Any, engine: FakeEngine
) -> None:
    async with serving(engine) as client:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (status, expected)
        assert not engine.submitted


TABLE = """
[backends.local]
kind = "native"
[backends.local.lora_adapters]
support = "./lora/support"
"team/sql" = "./lora/sql"
[endpoints.support]
served_entities = [{ name = "support", backend = "local", model = "support" }]
"""


@pytest.mark.parametrize("table", [TABLE, TABLE.replace("lora_adapters", "adapters")], ids=["its name", "former name"])
def test_lora_adapters_are_read_from_the_configuration(table: str) -> None:
    (backend,) = make_backends(parse(table)).values()
    assert isinstance(backend, NativeBackend)
    assert backend._options.own_engines[0].lora_adapters == {"support": "./lora/support", "team/sql": "./lora/sql"}


def test_embeddings_use_the_lora_adapter_and_tokenization_does_not() -> None:
    backend = NativeBackend("local", {})
    backend.capabilities = Capabilities(lora_adapters=("sql",), models_are_loras=True)
    target = Target("tuned", arm("a", "sql"), backend, "sql")
    asked = Embed(id="e", model="tuned", inputs=())
    assert target.addressed(asked) == msgspec.structs.replace(asked, model="sql", lora_adapter="sql")
    tokens = Tokenize(id="t", model="tuned", prompt=TextPrompt("Hi"))
    assert target.addressed(tokens) == msgspec.structs.replace(tokens, model="sql")
    backend.capabilities = Capabilities(models_are_loras=True)
    with pytest.raises(ModelNotFound, match="The backend 'local' has no LoRA adapter 'sql'"):
        target.addressed(asked)


def test_databricks_clients_create_endpoints_of_lora_adapters() -> None:
    change = Change(action="create", endpoint="new", served_entities=(Entity("a", "local/team/support", 100),))
    deployed = changed({}, change, {"local": Health("ready")}, 1)
    assert deployed is not None
    assert deployed.endpoint is not None
    assert deployed.endpoint.served_entities == (arm("a", "team/support"),)


async def test_listings_name_lora_adapters(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        models = {model["id"]: model.get("parent") for model in (await client.get("/v1/models")).json()["data"]}
        own_names = {"team/support": "chat"}  # "sql" is an endpoint
        assert models == dict.fromkeys(ENDPOINTS) | {"support": "chat", "both": "chat"} | own_names
        one = (await client.get("/v1/models/team/support")).json()
        assert (one["id"], one["parent"], "root" in one) == ("team/support", "chat", False)
        assert (await client.get("/info")).json()["adapters"] == ["team/support", "sql"]
        endpoint = (await client.get("/api/2.0/serving-endpoints/both")).json()
        names = [entity["entity_name"] for entity in endpoint["config"]["served_entities"]]
        assert names == ["local/team/support", "local/sql"]


async def test_a_resubmitted_request_keeps_its_lora_adapter(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        engine.rule = lambda submit: dying(engine)
        answer = await client.post("/v1/completions", json={"model": "support", "prompt": "Hi", "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        assert [submit.lora_adapter for submit in engine.submitted] == ["team/support"] * 2


def dying(engine: FakeEngine) -> Any:
    """Yield four tokens; the first engine dies after the first."""
    yield 10
    if len(engine.submitted) == 1:
        engine.die()
    yield from (11, 12, 13)
