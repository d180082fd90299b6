"""How clients name an endpoint: by name, alias, default, mount, listener or header."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, Listener, Mount, ServedEntity, ServerSection
from tests.gateway.serving import MESSAGES, listening, running

ARMS = {"one": ("gpt-4o-mini", "gpt-*"), "two": ("claude-*",), "three": ()}


def config(**server: Any) -> Config:
    endpoints = {
        name: Endpoint(served_entities=(ServedEntity(name=f"{name}-1", backend="s", model="echo"),), aliases=aliases)
        for name, aliases in ARMS.items()
    }
    return Config(server=ServerSection(**server), backends={"s": {"kind": "scripted"}}, endpoints=endpoints)


SERVER: dict[str, Any] = {
    "default": "two",
    "mounts": (Mount(prefix="/three", endpoint="three"), Mount(prefix="/plain")),
}


async def arm(client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> str:
    answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["served-model-name"]


CHAT = "/v1/chat/completions"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "served"),
    [
        ("one", "one-1"),
        ("gpt-4o-mini", "one-1"),
        ("gpt-5", "one-1"),
        ("claude-sonnet-4", "two-1"),
        ("three:three-1", "three-1"),
        ("tgi", "two-1"),
        ("dummy", "two-1"),
        ("", "two-1"),
        ("http://127.0.0.1:8000/", "two-1"),
    ],
)
async def test_names_of_openais_clients(model: str, served: str) -> None:
    async with running(create_app(config(**SERVER))) as client:
        assert await arm(client, CHAT, {"model": model, "messages": MESSAGES}) == served
        assert await arm(client, "/v1/completions", {"model": model, "prompt": "x"}) == served
        assert await arm(client, "/v1/embeddings", {"model": model, "input": "x"}) == served
        assert await arm(client, "/v1/responses", {"model": model, "input": "x"}) == served


async def test_an_unknown_name_is_refused_and_the_answer_names_what_answered() -> None:
    async with running(create_app(config(**SERVER))) as client:
        unknown = await client.post(CHAT, json={"model": "mistral", "messages": MESSAGES})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        by_alias = await client.post(CHAT, json={"model": "gpt-5", "messages": MESSAGES})
        by_name = await client.post(CHAT, json={"model": "one", "messages": MESSAGES})
        assert by_alias.json()["model"] == by_name.json()["model"]


async def test_aliases_reach_every_protocol() -> None:
    async with running(create_app(config(**SERVER))) as client:
        message = {"model": "claude-x", "max_tokens": 4, "messages": MESSAGES}
        assert await arm(client, "/v1/messages", message) == "two-1"
        assert await arm(client, "/v2/models/claude-x/generate", {"text_input": "x"}) == "two-1"
        assert await arm(client, "/serving-endpoints/gpt-5/invocations", {"messages": MESSAGES}) == "one-1"
        assert (await client.get("/v2/models/claude-x/ready")).status_code == 200


@pytest.mark.slow
async def test_routes_without_a_model_go_to_the_default_of_their_mount_or_header() -> None:
    async with running(create_app(config(**SERVER))) as client:
        body = {"inputs": "x"}
        assert await arm(client, "/generate", body) == "two-1"
        assert await arm(client, "/plain/generate", body) == "two-1"
        assert await arm(client, "/three/generate", body) == "three-1"
        assert await arm(client, "/three" + CHAT, {"model": "tgi", "messages": MESSAGES}) == "three-1"
        assert await arm(client, "/three" + CHAT, {"model": "one", "messages": MESSAGES}) == "one-1"
        assert (await client.get("/three/info")).json()["model_id"] == "three"
        header = {"x-gateway-model-name": "gpt-5"}
        assert await arm(client, "/generate", body, **header) == "one-1"
        assert await arm(client, CHAT, {"model": "tgi", "messages": MESSAGES}, **header) == "one-1"
        assert await arm(client, CHAT, {"model": "two", "messages": MESSAGES}, **header) == "two-1"
        wrong = await client.post("/generate", json=body, headers={"x-gateway-model-name": "nobody"})
        assert (wrong.status_code, wrong.json()["error"]) == (404, "The model 'nobody' does not exist.")


@pytest.mark.slow
async def test_a_listener_has_an_endpoint_of_its_own() -> None:
    async with listening(create_app(config(**SERVER))) as free:
        pass  # the port is free again, and is then configured as the listener's
    server = SERVER | {"listeners": (Listener(port=free, endpoint="one"),)}
    async with listening(create_app(config(**server)), free) as port, httpx.AsyncClient() as client:
        assert await arm(client, f"http://127.0.0.1:{port}/generate", {"inputs": "x"}) == "one-1"
        assert await arm(client, f"http://127.0.0.1:{port}/three/generate", {"inputs": "x"}) == "one-1"


@pytest.mark.parametrize("path", ["/openai/v1", "/openai/deployments/gpt-5"])
async def test_azures_paths(path: str) -> None:
    query = "?api-version=2024-10-21"
    body = {"model": "one"} if path == "/openai/v1" else {}
    async with running(create_app(config(**SERVER))) as client:
        assert await arm(client, f"{path}/chat/completions{query}", {"messages": MESSAGES} | body) == "one-1"
        assert await arm(client, f"{path}/completions{query}", {"prompt": "x"} | body) == "one-1"
        assert await arm(client, f"{path}/embeddings{query}", {"input": "x", "model": "two"} | body) == "one-1"
        assert await arm(client, f"/openai/responses{query}", {"input": "x", "model": "one"}) == "one-1"
        assert (await client.get(f"/openai/models{query}")).json() == (await client.get("/v1/models")).json()
        unknown = await client.post(f"/openai/deployments/nobody/completions{query}", json={"prompt": "x"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_anthropics_model_list() -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with running(create_app(config(**SERVER))) as client:

        async def page(query: str) -> tuple[list[str], bool]:
            answer = (await client.get(f"/v1/models{query}", headers=version)).json()
            ids = [model["id"] for model in answer["data"]]
            assert (answer["first_id"], answer["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
            return ids, answer["has_more"]

        assert await page("") == (["one", "two", "three", "gpt-4o-mini"], False)
        assert await page("?limit=2") == (["one", "two"], True)
        assert await page("?limit=2&after_id=two") == (["three", "gpt-4o-mini"], False)
        assert await page("?limit=1&before_id=three") == (["two"], True)
        assert await page("?after_id=gpt-4o-mini") == ([], False)
        one = (await client.get("/v1/models/gpt-5", headers=version)).json()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", one.pop("created_at"))
        assert one == {"type": "model", "id": "gpt-5", "display_name": "gpt-5", "lifecycle": "active"}
        for path, status, type in (
            ("/v1/models/nobody", 404, "not_found_error"),
            ("/v1/models?limit=0", 400, "invalid_request_error"),
            ("/v1/models?after_id=nobody", 400, "invalid_request_error"),
        ):
            refused = await client.get(path, headers=version)
            assert (refused.status_code, refused.json()["error"]["type"]) == (status, type)


async def test_aliases_are_listed_as_models_with_a_root() -> None:
    async with running(create_app(config(**SERVER))) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(model["id"], model.get("root")) for model in listed] == [
            ("one", None),
            ("two", None),
            ("three", None),
            ("gpt-4o-mini", "one"),
        ]
        one = (await client.get("/v1/models/gpt-5")).json()
        assert (one["id"], one["root"]) == ("gpt-5", "one")
