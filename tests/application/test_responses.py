"""Stored responses through the application: shared by two workers with one folder, and isolated between clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits, ServerSection
from tests.gateway.serving import config, running

ASK = {"model": "echo", "input": "Hi there"}


@asynccontextmanager
async def workers(folder: Path, *models: str) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    settings = config(*(models or ("echo",)), server=ServerSection(keys_env="KEYS"))
    one, other = (create_app(settings, {"s": ScriptedBackend("s")}, folder=folder) for _ in range(2))
    async with running(one) as first, running(other) as second:
        for client in (first, second):
            client.headers["authorization"] = "Bearer a"
        yield first, second


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "a,b")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_any_worker_returns_a_stored_response(tmp_path: Path, stream: bool) -> None:
    async with workers(tmp_path) as (one, other):
        await returns_it_again(one, other, stream)


async def returns_it_again(one: httpx.AsyncClient, other: httpx.AsyncClient, stream: bool) -> None:
    answer = await one.post("/v1/responses", json=ASK | {"stream": stream})
    if stream:
        said = msgspec.json.decode(answer.text.rsplit("data: ", 1)[1])["response"]
    else:
        said = answer.json()
    path = f"/v1/responses/{said['id']}"
    assert (await other.get(path)).json() == said
    items = (await other.get(f"{path}/input_items?order=asc&limit=5")).json()
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi there"]
    more = await other.post("/v1/responses", json=ASK | {"input": "More", "previous_response_id": said["id"]})
    assert more.json()["usage"]["input_tokens"] > said["usage"]["input_tokens"]
    for method in ("GET", "DELETE"):
        stranger = await other.request(method, path, headers={"authorization": "Bearer b"})
        assert (stranger.status_code, stranger.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (await other.delete(path)).json() == {"id": said["id"], "object": "response", "deleted": True}
    assert (await one.get(path)).status_code == 404
    lost = await one.post("/v1/responses", json=ASK | {"previous_response_id": said["id"]})
    assert (lost.status_code, lost.json()["error"]["code"]) == (400, "previous_response_not_found")
    after = await one.get(f"/v1/responses/{more.json()['id']}/input_items")
    assert len(after.json()["data"]) == 3


@pytest.mark.slow
async def test_a_response_with_store_false_is_not_stored(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, _):
        answer = (await one.post("/v1/responses", json=ASK | {"store": False})).json()
        assert answer["store"] is False
        assert (await one.get(f"/v1/responses/{answer['id']}")).status_code == 404


async def test_a_server_without_a_response_store_stores_nothing() -> None:
    settings = config("echo", server=ServerSection(limits=Limits(stored_responses=0)))
    async with running(create_app(settings, {"s": ScriptedBackend("s")})) as client:
        answer = (await client.post("/v1/responses", json=ASK | {"store": True})).json()
        assert answer["store"] is False
        assert (await client.get(f"/v1/responses/{answer['id']}")).status_code == 404
