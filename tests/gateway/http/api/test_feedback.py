"""A client's own metric: received by any worker, counted for the arm that answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, FeedbackMetric, ServerSection
from gateway.config import Experiment as Settings
from tests.gateway.serving import MESSAGES, PAIR, chat, figures, running, unit_for

LIKED = msgspec.structs.replace(
    PAIR,
    experiment=Settings(
        feedback={"liked": "higher", "hated": "lower", "rated": FeedbackMetric(better="higher", min=0, max=1)}
    ),
)


def worker(folder: Path, slot: str | None = None) -> Litestar:
    config = Config(backends={"s": {"kind": "scripted"}}, endpoints={"other": PAIR, "chat": LIKED})
    return create_app(config, {"s": ScriptedBackend("s")}, folder, slot)


@pytest.mark.slow
async def test_feedback_is_counted_for_the_arm_whichever_worker_receives_it(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        for value in (1.0, 0.0):
            answer = await chat(one, user=unit_for("b"))
            feedback = {"request_id": answer.headers["x-request-id"], "metric": "liked", "value": value}
            for client in (one, two):
                assert (await client.post("/v1/feedback", json=feedback)).status_code == 204
        for client in (one, two):
            found = await figures(client)
            assert found["b"]["means"]["liked"] == 0.5
            assert "liked" not in found["a"]["means"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_feedback_is_accepted_as_soon_as_the_end_of_the_answer_is_sent(stream: bool, tmp_path: Path) -> None:
    """The client has the last bytes while the worker that sent them has not returned yet."""
    app, headers, checks = worker(tmp_path), dict[bytes, bytes](), list[asyncio.Task[Any]]()
    async with running(app), running(worker(tmp_path)) as other:

        async def check() -> Any:
            await send_feedback(other, headers[b"x-request-id"].decode(), 1.0)
            return (await figures(other))["b"]

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                await send(message)
                headers.update(message.get("headers", ()))
                if b"[DONE]" in message.get("body", b"") or not (stream or message.get("more_body", True)):
                    checks.append(asyncio.create_task(check()))
                    # httpx disconnects once it has all of the answer, which cancels this send.
                    await asyncio.shield(checks[-1])

            await app(scope, receive, sent)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://localhost") as client:
            await chat(client, user=unit_for("b"), stream=stream)
        (found,) = await asyncio.gather(*checks)
    assert (found["means"]["success"], found["means"]["liked"], found["finish_reasons"]) == (1.0, 1.0, {"eos": 1})


def kept(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


async def send_feedback(client: httpx.AsyncClient, id: str, value: float, metric: str = "liked") -> None:
    feedback = {"request_id": id, "metric": metric, "value": value}
    assert (await client.post("/v1/feedback", json=feedback)).status_code == 204


@pytest.mark.slow
async def test_of_feedback_sent_twice_the_last_counts_whichever_worker_receives_it(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two, running(worker(tmp_path)) as three:
        ids = [(await chat(one, user=unit_for("b"))).headers["x-request-id"] for _ in range(2)]
        for client, value in ((one, 1.0), (two, 1.0), (two, 5.0), (three, 3.0), (three, 3.0)):
            await send_feedback(client, ids[0], value)
        await send_feedback(two, ids[0], 7.0, "hated")
        await send_feedback(two, ids[1], 2.0)
        for client in (one, two, three):
            found = (await figures(client))["b"]
            assert (found["means"]["liked"], found["means"]["hated"]) == (2.5, 7.0)


@pytest.mark.slow
async def test_a_worker_continues_the_counters_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    async with running(worker(tmp_path, "worker-0")) as first, running(worker(tmp_path, "worker-1")) as other:
        id = (await chat(first, user=unit_for("b"))).headers["x-request-id"]
        await send_feedback(other, id, 1.0)
    for count in range(2, 6):  # each takes the place of the last one, which may have been killed
        async with running(worker(tmp_path, "worker-0")) as client:
            if count == 2:
                await send_feedback(client, id, 3.0)
            await chat(client, user=unit_for("b"))
            found = (await figures(client))["b"]
            assert (found["exposures"], found["means"]["success"], found["means"]["liked"]) == (count, 1.0, 3.0)
    assert kept(tmp_path, "experiments/*/50-50/requests.*") == 2 + 2  # endpoints and workers
    assert kept(tmp_path, "experiments/answers/*") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feedback", "word"),
    [
        ({"request_id": "no-such", "metric": "liked", "value": 1}, "remembered"),
        ({"request_id": "0" * 24, "metric": "liked", "value": 1}, "remembered"),
        ({"request_id": "{id}", "metric": "loved", "value": 1}, "no metric 'loved'"),
        ({"request_id": "{id}", "metric": "liked", "value": "much"}, "value"),
        ({"request_id": "{id}", "metric": "liked"}, "value"),
    ],
)
async def test_feedback_that_cannot_be_counted_is_refused(
    feedback: dict[str, object], word: str, tmp_path: Path
) -> None:
    async with running(worker(tmp_path)) as client:
        answer = await chat(client)
        id = answer.headers["x-request-id"]
        body = {name: id if value == "{id}" else value for name, value in feedback.items()}
        refused = await client.post("/v1/feedback", json=body)
        assert refused.status_code == 400
        assert word in refused.json()["error"]["message"]


@pytest.mark.slow
async def test_feedback_by_the_clients_own_id_and_within_bounds(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        body = {"messages": MESSAGES, "client_request_id": "mine", "user": unit_for("b")}
        assert (await client.post("/serving-endpoints/chat/invocations", json=body)).status_code == 200
        for value, status in ((0.25, 204), (1.5, 400), (-0.1, 400), (0.75, 204)):
            feedback = {"client_request_id": "mine", "metric": "rated", "value": value}
            answer = await client.post("/v1/feedback", json=feedback)
            assert answer.status_code == status, answer.text
        assert (await figures(client))["b"]["means"]["rated"] == 0.75
        for ids in ({}, {"client_request_id": "mine", "request_id": "x"}, {"client_request_id": "other"}):
            refused = await client.post("/v1/feedback", json=ids | {"metric": "rated", "value": 1})
            assert refused.status_code == 400


@pytest.mark.slow
async def test_only_the_key_that_asked_may_send_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEYS", "one,two")
    endpoints = {"chat": LIKED}
    config = Config(
        server=ServerSection(keys_env="THE_KEYS"), backends={"s": {"kind": "scripted"}}, endpoints=endpoints
    )
    async with running(create_app(config, {"s": ScriptedBackend("s")})) as client:
        asked = {"model": "chat", "messages": MESSAGES}
        answer = await client.post("/v1/chat/completions", json=asked, headers={"authorization": "Bearer one"})
        feedback = {"request_id": answer.headers["x-request-id"], "metric": "liked", "value": 1}
        for key, status in (("two", 400), ("three", 401), ("one", 204)):
            sent = await client.post("/v1/feedback", json=feedback, headers={"x-api-key": key})
            assert sent.status_code == status
