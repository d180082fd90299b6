"""Conversations through the application: shared by two workers with one folder, and isolated between keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits, ServerSection
from tests.application.test_responses import keys, workers  # noqa: F401 - a fixture
from tests.gateway.serving import config, running

ASK = {"model": "echo", "input": "Hi there"}
STRANGER = {"authorization": "Bearer b"}


def texts(answer: httpx.Response) -> list[str]:
    return [item["content"][0]["text"] for item in answer.json()["data"]]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_grows_by_input_and_answer(tmp_path: Path, stream: bool) -> None:
    async with workers(tmp_path) as (one, other):
        made = (await one.post("/v1/conversations", json={"metadata": {"topic": "tests"}})).json()
        path = f"/v1/conversations/{made['id']}"
        ask = ASK | {"conversation": made["id"], "stream": stream}
        first = await one.post("/v1/responses", json=ask)
        assert first.status_code == 200
        again = await other.post("/v1/responses", json=ask | {"input": "More", "conversation": {"id": made["id"]}})
        assert again.status_code == 200
        said = texts(await one.get(f"{path}/items?order=asc"))
        assert (said[0], said[2], len(said)) == ("Hi there", "More", 4)
        if not stream:
            assert again.json()["conversation"] == {"id": made["id"]}
            assert again.json()["usage"]["input_tokens"] > first.json()["usage"]["input_tokens"]
            items = (await one.get(f"/v1/responses/{again.json()['id']}/input_items?order=asc")).json()["data"]
            assert len(items) == 3
        for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/items")):
            assert (await other.request(method, where, headers=STRANGER)).status_code == 404
        theirs = await other.post("/v1/responses", json=ask, headers=STRANGER)
        assert (theirs.status_code, theirs.json()["error"]["type"]) == (404, "invalid_request_error")


@pytest.mark.slow
async def test_the_routes_of_conversations(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, other):
        hello = {"role": "user", "content": "Hello", "id": "msg_mine", "own": 1}
        made = (await one.post("/v1/conversations", json={"items": [hello]})).json()
        path = f"/v1/conversations/{made['id']}"
        assert (made["object"], made["metadata"]) == ("conversation", {})
        updated = await other.post(path, json={"metadata": {"a": "b"}})
        assert updated.json() == made | {"metadata": {"a": "b"}} == (await one.get(path)).json()
        added = await one.post(f"{path}/items", json={"items": [{"role": "assistant", "content": "Hi"}] * 3})
        assert (len(added.json()["data"]), added.json()["has_more"]) == (3, False)
        page = (await other.get(f"{path}/items?limit=3")).json()
        assert (page["has_more"], page["last_id"]) == (True, added.json()["first_id"])
        rest = (await one.get(f"{path}/items?after={page['last_id']}")).json()
        assert rest["data"] == [
            {
                "type": "message",
                "id": "msg_mine",
                "status": "completed",
                "role": "user",
                "own": 1,
                "content": [{"type": "input_text", "text": "Hello"}],
            }
        ]
        item = f"{path}/items/msg_mine"
        assert (await one.get(item)).json() == rest["data"][0]
        assert (await one.delete(item)).json() == updated.json()
        assert (await other.get(item)).status_code == (await other.delete(item)).status_code == 404
        assert (await other.delete(path)).json() == {
            "id": made["id"],
            "object": "conversation.deleted",
            "deleted": True,
        }
        for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/items")):
            assert (await one.request(method, where)).status_code == 404
        assert (await one.post(path, json={"metadata": None})).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"type": "message", "role": "user", "content": "a"}] * 21}, "items"),
        ({"items": [{"role": "nobody", "content": "a"}]}, "items[0].role"),
        ({"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": 5}, "metadata"),
    ],
)
async def test_wrong_conversations_are_refused(tmp_path: Path, body: dict[str, object], param: str) -> None:
    async with one_worker() as client:
        answer = await client.post("/v1/conversations", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_wrong_names_of_conversations_are_refused() -> None:
    async with one_worker() as client:
        lost = await client.post("/v1/responses", json=ASK | {"conversation": "conv_lost"})
        assert (lost.status_code, "conv_lost" in lost.json()["error"]["message"]) == (404, True)
        both = await client.post("/v1/responses", json=ASK | {"conversation": "a", "previous_response_id": "b"})
        assert (both.status_code, both.json()["error"]["code"]) == (400, "mutually_exclusive_parameters")


async def test_a_server_that_stores_nothing_says_so() -> None:
    async with one_worker(Limits(stored_objects=0)) as client:
        answer = await client.post("/v1/conversations", json={})
        assert (answer.status_code, "limits.stored_objects" in answer.json()["error"]["message"]) == (400, True)
        named = await client.post("/v1/responses", json=ASK | {"conversation": "conv_1"})
        assert named.status_code == 400


@pytest.mark.slow
async def test_what_is_stored_can_outlast_the_server(tmp_path: Path) -> None:
    limits = ServerSection(storage_folder=str(tmp_path / "kept"))
    settings = config("echo", server=limits)
    async with running(create_app(settings, {"s": ScriptedBackend("s")}, folder=tmp_path / "1")) as client:
        made = (await client.post("/v1/conversations", json={})).json()
        said = (await client.post("/v1/responses", json=ASK | {"conversation": made["id"]})).json()
    async with running(create_app(settings, {"s": ScriptedBackend("s")}, folder=tmp_path / "2")) as client:
        assert (await client.get(f"/v1/conversations/{made['id']}")).json() == made
        assert (await client.get(f"/v1/responses/{said['id']}")).json() == said


@asynccontextmanager
async def one_worker(limits: Limits = Limits()) -> AsyncIterator[httpx.AsyncClient]:  # noqa: B008 - frozen
    settings = config("echo", server=ServerSection(limits=limits))
    async with running(create_app(settings, {"s": ScriptedBackend("s")})) as client:
        yield client
