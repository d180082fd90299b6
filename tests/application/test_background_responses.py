"""Responses in the background, over two workers with one folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from adapters.objects import Span
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits, ServerSection
from gateway.storage.objects import runs
from tests.application.test_responses import keys, workers  # noqa: F401 - a fixture
from tests.gateway.serving import config, listening, running

ASK = {"model": "echo", "input": "one two three four five six", "background": True}
STRANGER = {"authorization": "Bearer b"}
UNFINISHED = ("queued", "in_progress")


def events_in(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    for _ in range(400):
        answer = (await client.get(f"/v1/responses/{id}")).json()
        if answer["status"] not in UNFINISHED:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(answer)


@pytest.mark.slow
async def test_a_response_is_made_while_nobody_waits(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, other):
        queued = (await one.post("/v1/responses", json=ASK)).json()
        assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
        done = await ended(other, queued["id"])
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["text"].startswith("one two")
        assert {**done, "status": 0, "output": 0, "usage": 0, "completed_at": 0, "model": 0} == {
            **queued,
            "status": 0,
            "output": 0,
            "usage": 0,
            "completed_at": 0,
            "model": 0,
        }
        stranger = await other.get(f"/v1/responses/{queued['id']}", headers=STRANGER)
        assert stranger.status_code == 404
        again = await other.post(f"/v1/responses/{queued['id']}/cancel")
        assert again.json() == done
        more = await one.post("/v1/responses", json=ASK | {"background": False, "previous_response_id": done["id"]})
        assert more.json()["usage"]["input_tokens"] > done["usage"]["input_tokens"]
        assert (await one.get(f"/v1/responses/{done['id']}?stream=true")).status_code == 400


@pytest.mark.slow
async def test_a_stream_goes_on_anywhere_and_from_any_event(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, other):
        whole = events_in((await one.post("/v1/responses", json=ASK | {"stream": True})).text)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert [event["type"] for event in whole[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert whole[-1]["type"] == "response.completed"
        id = whole[0]["response"]["id"]
        assert (await other.get(f"/v1/responses/{id}")).json() == whole[-1]["response"]
        for client in (one, other):
            for after in (-1, 0, 3, len(whole) - 2):
                asked = f"/v1/responses/{id}?stream=true" + ("" if after < 0 else f"&starting_after={after}")
                assert events_in((await client.get(asked)).text) == whole[after + 1 :]
        wrong = await one.get(f"/v1/responses/{id}?stream=true&starting_after=x")
        assert wrong.json()["error"]["param"] == "starting_after"
        assert (await other.get(f"/v1/responses/{id}?stream=true", headers=STRANGER)).status_code == 404
        await other.delete(f"/v1/responses/{id}")
        assert (await one.get(f"/v1/responses/{id}?stream=true")).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hang", "hang-after-2"])
async def test_any_worker_cancels(tmp_path: Path, model: str) -> None:
    async with workers(tmp_path, model) as (one, other):
        async with asyncio.TaskGroup() as group:
            streamed = group.create_task(one.post("/v1/responses", json=ASK | {"model": model, "stream": True}))
            id = await begun(one, "in_progress" if "after" in model else "queued")
            stopped = await other.post(f"/v1/responses/{id}/cancel")
            assert (stopped.status_code, stopped.json()["status"]) == (200, "cancelled")
        events = events_in(streamed.result().text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[-1]["type"], events[-1]["response"]) == ("response.failed", stopped.json())
        assert (await one.get(f"/v1/responses/{id}")).json() == stopped.json()
        assert (await one.post(f"/v1/responses/{id}/cancel")).json() == stopped.json()
        await idle(one)


@pytest.mark.slow
async def test_the_client_may_leave(tmp_path: Path) -> None:
    async with workers(tmp_path, "slow") as (one, other):
        asking = asyncio.create_task(one.post("/v1/responses", json=ASK | {"model": "slow", "stream": True}))
        id = await begun(one, "in_progress")
        asking.cancel()
        done = await ended(other, id)
        assert done["status"] == "completed"
        events = events_in((await other.get(f"/v1/responses/{id}?stream=true")).text)
        assert (events[-1]["response"], len(events)) == (done, events[-1]["sequence_number"] + 1)


@pytest.mark.slow
async def test_a_failure_is_stored(tmp_path: Path) -> None:
    models = ("error", "error-after-3", "truncate-after-2")
    async with workers(tmp_path, *models) as (one, _):
        for model in models:
            for stream in (False, True):
                asked = await one.post("/v1/responses", json=ASK | {"model": model, "stream": stream})
                id = events_in(asked.text)[0]["response"]["id"] if stream else asked.json()["id"]
                failed = await ended(one, id)
                assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
                if stream:
                    assert events_in(asked.text)[-1]["response"] == failed


@pytest.mark.slow
async def test_a_response_fails_whose_worker_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(tmp_path, "hang-after-2") as (one, other):
        reading = asyncio.create_task(one.post("/v1/responses", json=ASK | {"model": "hang-after-2", "stream": True}))
        id = await begun(one, "in_progress")
        # As if the worker were dead: its lease is not renewed any more, and has expired.
        monkeypatch.setattr(runs.Leases, "renew", never)
        await service_of(one).stores._leases._objects.delete("worker", service_of(one).stores._leases.worker)
        failed = (await other.get(f"/v1/responses/{id}")).json()
        assert (failed["status"], "server stopped" in failed["error"]["message"]) == ("failed", True)
        events = events_in((await reading).text)
        assert (events[-1]["type"], events[-1]["response"]) == ("response.failed", failed)
        await idle(one)  # the worker was alive after all: it has noticed that the answer is not its own
        assert (await other.get(f"/v1/responses/{id}")).json() == failed


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_response_fails_whose_run_is_gone(tmp_path: Path, method: str) -> None:
    async with workers(tmp_path, "hang") as (one, other):
        id = (await one.post("/v1/responses", json=ASK | {"model": "hang"})).json()["id"]
        assert await service_of(one).stores.of("a").objects.delete("run", id)
        path = f"/v1/responses/{id}"
        failed = (await other.request(method, path + ("/cancel" if method == "POST" else ""))).json()
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        await idle(one)
        assert (await one.get(path)).json() == failed
        assert (await one.delete(path)).json()["deleted"]


@pytest.mark.slow
async def test_a_server_that_ends_fails_what_it_makes(tmp_path: Path) -> None:
    async with workers(tmp_path, "hang") as (one, other):
        id = (await one.post("/v1/responses", json=ASK | {"model": "hang"})).json()["id"]
        await asyncio.sleep(0)  # its task begins
        service_of(one).draining = True
        await service_of(one).runs.aclose()
        failed = (await other.get(f"/v1/responses/{id}")).json()
        assert (failed["status"], "shutting down" in failed["error"]["message"]) == ("failed", True)


@pytest.mark.slow
async def test_a_deleted_response_stays_deleted(tmp_path: Path) -> None:
    async with workers(tmp_path, "slow") as (one, other):
        id = (await one.post("/v1/responses", json=ASK | {"model": "slow"})).json()["id"]
        assert (await other.delete(f"/v1/responses/{id}")).json()["deleted"]
        await idle(one)
        assert (await one.get(f"/v1/responses/{id}")).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unfinished_response_is_no_previous_one(tmp_path: Path, stream: bool) -> None:
    async with workers(tmp_path, "hang-after-2", "echo") as (one, other):
        asked = ASK | {"model": "hang-after-2", "stream": stream}
        asking = asyncio.create_task(one.post("/v1/responses", json=asked))
        id = await begun(one, "in_progress")
        more = ASK | {"background": False, "previous_response_id": id}
        refused = await other.post("/v1/responses", json=more)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
        assert "until it has ended" in refused.json()["error"]["message"]
        await other.post(f"/v1/responses/{id}/cancel")
        assert (await other.post("/v1/responses", json=more)).status_code == 200
        await asking


@pytest.mark.slow
async def test_a_conversation_gets_what_was_made_in_the_background(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, other):
        talk = (await one.post("/v1/conversations", json={})).json()["id"]
        id = (await one.post("/v1/responses", json=ASK | {"conversation": talk})).json()["id"]
        await ended(other, id)
        items = (await other.get(f"/v1/conversations/{talk}/items")).json()["data"]
        assert [item["role"] for item in items] == ["assistant", "user"]


@pytest.mark.slow
async def test_a_stream_with_more_events_than_are_kept_is_cut_off(tmp_path: Path) -> None:
    small = config("many", server=ServerSection(limits=Limits(stored_objects=16 * 16 * 1024)))
    app, lines = create_app(small, {"s": ScriptedBackend("s")}, folder=tmp_path), []
    async with listening(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        ask = ASK | {"model": "many", "stream": True}
        async with client.stream("POST", "/v1/responses", json=ask) as answer:
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 - the stream fails in the middle
                async for line in answer.aiter_lines():
                    lines.append(line)  # noqa: PERF401 - those before it
        cut = events_in("\n".join(lines))
        assert cut[-1]["type"] == "response.output_text.delta"
        whole = await ended(client, cut[0]["response"]["id"])
        assert whole["status"] == "completed"
        assert whole["usage"]["output_tokens"] > len(cut)
        large = await client.post("/v1/responses", json=ask | {"instructions": "x" * 20_000})
        assert large.status_code == 413


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_whose_end_cannot_be_stored_fails(tmp_path: Path, stream: bool) -> None:
    small = config("many", server=ServerSection(limits=Limits(stored_responses=16 * 4096)))
    one, other = (create_app(small, {"s": ScriptedBackend("s")}, folder=tmp_path) for _ in range(2))
    async with running(one) as client, running(other) as reader:
        asked = await client.post("/v1/responses", json=ASK | {"model": "many", "stream": stream})
        id = events_in(asked.text)[0]["response"]["id"] if stream else asked.json()["id"]
        await idle(client)
        cancelled = (await reader.post(f"/v1/responses/{id}/cancel")).json()
        failed = (await client.get(f"/v1/responses/{id}")).json()
        assert cancelled == failed
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "did not store" in failed["error"]["message"]
        stored = service_of(client).stores.of("").responses.get(id)
        assert msgspec.json.decode(stored)["response"] == failed


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_too_large_to_be_stored_is_refused(tmp_path: Path, stream: bool) -> None:
    small = config("echo", server=ServerSection(limits=Limits(stored_responses=16 * 4096)))
    app = create_app(small, {"s": ScriptedBackend("s")}, folder=tmp_path)
    async with running(app) as client:
        large = await client.post("/v1/responses", json=ASK | {"input": "x" * 4096, "stream": stream})
        assert (large.status_code, large.json()["error"]["type"]) == (413, "invalid_request_error")
        await nothing_is_left(client)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_cannot_be_stored_now_is_refused(tmp_path: Path, stream: bool) -> None:
    app = create_app(config("echo"), {"s": ScriptedBackend("s")}, folder=tmp_path)
    (tmp_path / "responses" / "responses.sqlite3").mkdir(parents=True)  # no file can be made in its place
    async with running(app) as client:
        away = await client.post("/v1/responses", json=ASK | {"stream": stream})
        assert (away.status_code, "cannot be stored now" in away.json()["error"]["message"]) == (503, True)
        await nothing_is_left(client)


@pytest.mark.slow
async def test_only_what_is_stored_can_be_made_in_the_background(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, _):
        refused = await one.post("/v1/responses", json=ASK | {"store": False})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
        synchronous = (await one.post("/v1/responses", json=ASK | {"background": False})).json()
        assert (await one.post(f"/v1/responses/{synchronous['id']}/cancel")).status_code == 400


async def begun(client: httpx.AsyncClient, status: str) -> str:
    """The id of the one response that the worker makes, once it has a status."""
    tasks = service_of(client).runs
    for _ in range(400):
        for id in tasks._runs:
            if (await client.get(f"/v1/responses/{id}")).json()["status"] == status:
                return str(id)
        await asyncio.sleep(0.01)
    raise AssertionError("nothing has begun")


async def idle(client: httpx.AsyncClient) -> None:
    service = service_of(client)
    for _ in range(400):
        if not service.runs._runs and not service.running:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(service.runs._runs)


async def nothing_is_left(client: httpx.AsyncClient) -> None:
    """Neither a task nor a run is there of a response that was refused."""
    assert not service_of(client).runs._runs
    assert not (await service_of(client).stores.of("").objects.page("run", Span(9))).entries


async def never(_: object) -> None:
    """Renew nothing."""


def service_of(client: httpx.AsyncClient) -> Any:
    return client._transport.app.state.service  # type: ignore[attr-defined]
