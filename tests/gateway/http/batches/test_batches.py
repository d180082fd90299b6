"""Batches of OpenAI's clients: what becomes of each line, and of a batch that is refused, cancelled or left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.access.keys_file import keys_file, new_key
from gateway.config import Limit, Listener, Mount, ServerSection
from tests.gateway.http.batches.serving import CHAT, answered, batch_of, batching, begin, ended, line, read, upload
from tests.gateway.serving import running, scripted


@pytest.mark.slow
async def test_each_line_has_the_answer_of_its_live_request(tmp_path: Path) -> None:
    lines = [line("a"), line("b"), "", line("c", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]})]
    async with batching(tmp_path) as client:
        batch = await batch_of(client, lines)
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"] <= batch["expires_at"]
        output, errors = await read(client, batch["output_file_id"]), await read(client, batch["error_file_id"])
        assert (set(output), set(errors)) == ({"a", "b"}, {"c"})
        live = await client.post(CHAT, json=json.loads(lines[0])["body"])
        answered = output["a"]["response"]
        assert answered["status_code"] == 200
        for name in ("choices", "usage", "model", "object"):
            assert answered["body"][name] == live.json()[name]
        refused = await client.post(CHAT, json=json.loads(lines[3])["body"])
        assert errors["c"]["response"]["status_code"] == refused.status_code == 404
        assert errors["c"]["response"]["body"] == refused.json()
        assert errors["c"]["error"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "echo", "prompt": "Once"}),
        ("/v1/embeddings", {"model": "echo", "input": "Once"}),
        ("/v1/responses", {"model": "echo", "input": "Once"}),
    ],
)
async def test_every_endpoint_answers_lines(tmp_path: Path, endpoint: str, body: dict[str, Any]) -> None:
    async with batching(tmp_path) as client:
        batch = await batch_of(client, [line("a", body, endpoint)], endpoint)
        output = await read(client, batch["output_file_id"])
        live = (await client.post(endpoint, json=body)).json()
        assert output["a"]["response"]["body"]["object"] == live["object"]
        assert output["a"]["response"]["body"]["usage"] == live["usage"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://localhost", "one"),
        ("http://localhost/two", "two"),
        ("http://localhost:4003", "three"),
        ("http://localhost:4003/two", "three"),  # a listener's endpoint goes before a mount's
    ],
)
async def test_lines_without_a_model_go_to_the_endpoint_of_their_mount_or_listener(
    tmp_path: Path, url: str, endpoint: str
) -> None:
    server = ServerSection(
        default="one",
        mounts=(Mount(prefix="/two", endpoint="two"),),
        listeners=(Listener(port=4003, endpoint="three"),),
    )
    body = {"model": "tgi", "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path, "one", "two", "three", server=server, url=url) as client:
        live = await client.post(CHAT, json=body)
        assert live.json()["model"] == endpoint
        batch = await batch_of(client, [line("a", body)])
        output = await read(client, batch["output_file_id"])
        assert output["a"]["response"]["body"]["model"] == endpoint


@pytest.mark.slow
async def test_a_streamed_line_is_refused(tmp_path: Path) -> None:
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path) as client:
        batch = await batch_of(client, [line("a", body)])
        assert batch["output_file_id"] is None
        errors = await read(client, batch["error_file_id"])
        assert errors["a"]["response"]["body"]["error"]["param"] == "stream"
        endpoint = "/v1/responses"
        batch = await batch_of(
            client, [line("a", {"model": "echo", "input": "x", "background": True}, endpoint)], endpoint
        )
        errors = await read(client, batch["error_file_id"])
        assert errors["a"]["response"]["status_code"] == 400


@pytest.mark.slow
async def test_a_line_waits_while_its_key_has_reached_a_limit(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    key = {"authorization": f"Bearer {new_key(file, 'mine', limits=(Limit(requests=2),))}"}
    server = ServerSection(keys_file=str(tmp_path / "keys.json"))
    async with batching(tmp_path / "b", server=server) as client:
        uploaded = await upload(client, [line(name) for name in "abc"], **key)
        id = (await begin(client, uploaded, **key)).json()["id"]
        await answered(client, id, 2, **key)
        await asyncio.sleep(0.1)
        batch = (await client.get(f"/v1/batches/{id}", headers=key)).json()
        assert batch["status"] == "in_progress"
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 0}


@pytest.mark.slow
async def test_wrong_lines_fail_the_batch_with_their_numbers(tmp_path: Path) -> None:
    lines = [
        line("a"),
        "{",
        line("a"),
        line("b", method="GET"),
        line("c", url="/v1/embeddings"),
        "{}",
        line("d", body={"x": 1}) + "\n\n" + line("e") + "[",
        line("f", custom_id=3),
        json.dumps({"custom_id": "g", "method": "POST", "url": CHAT, "body": []}),
    ]
    async with batching(tmp_path) as client:
        batch = await batch_of(client, lines)
        assert batch["status"] == "failed"
        assert batch["failed_at"] is not None
        assert [(each["line"], each["code"], each["param"]) for each in batch["errors"]["data"]] == [
            (2, "invalid_json_line", None),
            (3, "duplicate_custom_id", "custom_id"),
            (4, "invalid_method", "method"),
            (5, "mismatched_url", "url"),
            (6, "missing_required_parameter", "custom_id"),
            (9, "invalid_json_line", None),
            (10, "invalid_request", None),
            (11, "invalid_request", "body"),
        ]


@pytest.mark.slow
async def test_empty_and_long_files_fail(tmp_path: Path) -> None:
    async with batching(tmp_path, max_lines=2) as client:
        empty = await batch_of(client, ["", " "])
        assert empty["errors"]["data"][0]["code"] == "empty_file"
        long = await batch_of(client, [line(name) for name in "abc"])
        assert [(each["code"], each["line"]) for each in long["errors"]["data"]] == [("too_many_lines", 3)]


@pytest.mark.slow
async def test_what_cannot_be_a_batch_is_refused_at_once(tmp_path: Path) -> None:
    async with batching(tmp_path) as client:
        file = await upload(client, [line("a")])
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        for wrong, param in (
            ({"endpoint": "/v1/images"}, "endpoint"),
            ({"completion_window": "1h"}, "completion_window"),
            ({"input_file_id": "file-0"}, "input_file_id"),
            ({"metadata": {"a": "x" * 513}}, "metadata.a"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ):
            answer = await client.post("/v1/batches", json=body | wrong)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        for path in ("/v1/batches/batch_0", "/v1/files/file-0", "/v1/files/file-0/content"):
            assert (await client.get(path)).status_code == 404
        assert (await client.put("/v1/batches", json={})).status_code == 405


@pytest.mark.slow
async def test_a_server_without_the_section_names_it() -> None:
    async with running(scripted("echo")[0]) as client:
        answer = await client.get("/v1/files")
    assert answer.status_code == 404
    assert "[batches]" in answer.json()["error"]["message"]


@pytest.mark.slow
async def test_a_cancelled_batch_keeps_what_was_answered(tmp_path: Path) -> None:
    hanging = {"model": "hang", "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path, "echo", "hang") as client:
        id = (await begin(client, await upload(client, [line("a"), line("b", hanging)]))).json()["id"]
        await answered(client, id, 1)
        assert (await client.post(f"/v1/batches/{id}/cancel")).json()["status"] == "cancelling"
        batch = await ended(client, id)
        assert batch["status"] == "cancelled"
        assert batch["cancelling_at"] <= batch["cancelled_at"]
        assert set(await read(client, batch["output_file_id"])) == {"a"}
        errors = await read(client, batch["error_file_id"])
        assert errors["b"]["error"]["code"] == "batch_cancelled"
        again = await client.post(f"/v1/batches/{id}/cancel")
        assert again.status_code == 400


@pytest.mark.slow
async def test_a_batch_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.batches.store.WINDOW", 1)
    hanging = {"model": "hang", "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path, "echo", "hang") as client:
        batch = await batch_of(client, [line("a"), line("b", hanging)])
        assert batch["status"] == "expired"
        assert set(await read(client, batch["output_file_id"])) == {"a"}
        assert (await read(client, batch["error_file_id"]))["b"]["error"]["code"] == "batch_expired"


@pytest.mark.slow
async def test_another_server_goes_on_with_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.batches.runner._GRACE", 0.1)
    hanging = {"model": "hang", "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path, "echo", "hang") as client:
        names = [f"l{number}" for number in range(20)]
        lines = [line(name) for name in names] + [line("b", hanging)]
        id = (await begin(client, await upload(client, lines))).json()["id"]
        await answered(client, id, 20)
        before = (await client.get(f"/v1/batches/{id}")).json()
        assert before["status"] == "in_progress"
    async with batching(tmp_path, "echo", "hang") as client:
        await client.post(f"/v1/batches/{id}/cancel")
        batch = await ended(client, id)
        assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 0}
        assert set(await read(client, batch["output_file_id"])) == set(names)


@pytest.mark.slow
async def test_a_key_sees_its_own_alone(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    mine, other = (f"Bearer {new_key(file, name, endpoints=('echo',))}" for name in ("mine", "other"))
    server = ServerSection(keys_file=str(tmp_path / "keys.json"))
    async with batching(tmp_path / "b", "echo", "slow", server=server) as client:
        assert (await client.get("/v1/files")).status_code == 401
        forbidden = {"model": "slow", "messages": [{"role": "user", "content": "x"}]}
        uploaded = await upload(client, [line("a"), line("b", forbidden)], authorization=mine)
        assert (await begin(client, uploaded, authorization=other)).status_code == 400
        id = (await begin(client, uploaded, authorization=mine)).json()["id"]
        batch = await ended(client, id, authorization=mine)
        # The rights of the key hold for each line.
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        for path in (f"/v1/batches/{id}", f"/v1/files/{uploaded}", f"/v1/files/{batch['output_file_id']}/content"):
            assert (await client.get(path, headers={"authorization": mine})).status_code == 200
            assert (await client.get(path, headers={"authorization": other})).status_code == 404
        for path in ("/v1/batches", "/v1/files"):
            assert (await client.get(path, headers={"authorization": other})).json()["data"] == []


@pytest.mark.slow
async def test_open_batches_of_a_key_are_bounded(tmp_path: Path) -> None:
    hanging = {"model": "hang", "messages": [{"role": "user", "content": "x"}]}
    async with batching(tmp_path, "echo", "hang", max_open=1) as client:
        file = await upload(client, [line("b", hanging)])
        assert (await begin(client, file)).status_code == 200
        refused = await begin(client, file)
        assert refused.status_code == 429
        assert "1 batches" in refused.json()["error"]["message"]


@pytest.mark.slow
async def test_pages_of_batches(tmp_path: Path) -> None:
    async with batching(tmp_path) as client:
        ids = [(await batch_of(client, [line("a")]))["id"] for _ in range(3)][::-1]
        first = (await client.get("/v1/batches?limit=2")).json()
        assert [each["id"] for each in first["data"]] == ids[:2]
        assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[0], ids[1])
        rest = (await client.get(f"/v1/batches?after={ids[1]}")).json()
        assert [each["id"] for each in rest["data"]] == ids[2:]
        assert rest["has_more"] is False
        assert (await client.get("/v1/batches?limit=0")).status_code == 400
