"""Batches of Anthropic's clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.batches import Line, NewBatch
from gateway.batches.database import Database
from gateway.batches.store import BatchStore
from tests.gateway.http.batches.serving import batching

BATCHES = "/v1/messages/batches"


def request(name: str, model: str = "echo") -> dict[str, Any]:
    params = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": f"I am {name}"}]}
    return {"custom_id": name, "params": params}


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    while True:
        batch: dict[str, Any] = (await client.get(f"{BATCHES}/{id}")).json()
        if batch["processing_status"] == "ended":
            return batch
        assert batch["request_counts"]["succeeded"] == 0  # known only once it has ended
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_each_request_has_its_result(tmp_path: Path) -> None:
    async with batching(tmp_path) as client:
        made = await client.post(BATCHES, json={"requests": [request("a"), request("b", "nobody")]})
        assert made.json()["processing_status"] == "in_progress"
        assert made.json()["request_counts"]["processing"] == 2
        id = made.json()["id"]
        assert id.startswith("msgbatch_")
        early = await client.delete(f"{BATCHES}/{id}")
        assert early.status_code == 400
        assert early.json()["type"] == "error"
        batch = await ended(client, id)
        assert batch["request_counts"] == {"processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0}
        answer = await client.get(batch["results_url"])
        assert answer.headers["content-type"] == "application/x-jsonl"
        results = {each["custom_id"]: each["result"] for each in map(json.loads, answer.text.splitlines())}
        assert results["a"]["type"] == "succeeded"
        assert results["a"]["message"]["content"] == [{"type": "text", "text": "I am a"}]
        live = await client.post("/v1/messages", json=request("b", "nobody")["params"])
        error = live.json()
        assert results["b"]["error"].pop("request_id") != error.pop("request_id")
        assert results["b"] == {"type": "errored", "error": error}
        # Results are no file of OpenAI's clients.
        assert (await client.get("/v1/files")).json()["data"] == []
        assert (await client.delete(f"{BATCHES}/{id}")).json() == {"id": id, "type": "message_batch_deleted"}
        assert (await client.get(f"{BATCHES}/{id}")).status_code == 404
        assert (await client.get(f"{BATCHES}/{id}/results")).status_code == 404


@pytest.mark.slow
async def test_cancelled_requests_are_named(tmp_path: Path) -> None:
    async with batching(tmp_path, "echo", "hang") as client:
        id = (await client.post(BATCHES, json={"requests": [request("a", "hang")]})).json()["id"]
        assert (await client.get(f"{BATCHES}/{id}/results")).status_code == 400
        cancelled = (await client.post(f"{BATCHES}/{id}/cancel")).json()
        assert cancelled["processing_status"] == "canceling"
        assert cancelled["cancel_initiated_at"] is not None
        batch = await ended(client, id)
        assert batch["request_counts"]["canceled"] == 1
        answer = await client.get(batch["results_url"])
        assert json.loads(answer.text) == {"custom_id": "a", "result": {"type": "canceled"}}


@pytest.mark.slow
async def test_a_batch_of_a_mount_that_has_gone_is_answered(tmp_path: Path) -> None:
    database = Database(tmp_path / "batches.sqlite3")
    asked = NewBatch(endpoint="/v1/messages", lines=(Line("a", json.dumps(request("a")["params"]).encode()),))
    await BatchStore(database, 1, 60).create("", "anthropic", "msgbatch_1", asked, prefix="/gone", port=1)
    database.close()
    async with batching(tmp_path) as client:
        batch = await ended(client, "msgbatch_1")
        assert batch["request_counts"]["succeeded"] == 1


async def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    async with batching(tmp_path, max_lines=2) as client:
        for wrong in ({}, {"requests": []}, {"requests": [request("a b")]}, {"requests": [request("a")] * 2}):
            answer = await client.post(BATCHES, json=wrong)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
        many = await client.post(BATCHES, json={"requests": [request(name) for name in "abc"]})
        assert many.status_code == 400


@pytest.mark.slow
async def test_pages_go_both_ways(tmp_path: Path) -> None:
    async with batching(tmp_path) as client:
        ids = [(await client.post(BATCHES, json={"requests": [request("a")]})).json()["id"] for _ in range(4)][::-1]

        async def page(query: str) -> tuple[list[str], bool]:
            answer = (await client.get(f"{BATCHES}?{query}")).json()
            return [each["id"] for each in answer["data"]], answer["has_more"]

        assert await page("limit=3") == (ids[:3], True)
        assert await page(f"after_id={ids[2]}") == (ids[3:], False)
        assert await page(f"limit=1&before_id={ids[2]}") == ([ids[1]], True)
        assert await page(f"before_id={ids[1]}") == ([ids[0]], False)
