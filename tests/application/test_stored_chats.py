"""Stored chat completions through the application, over two workers with one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.application.test_responses import keys, workers  # noqa: F401 - a fixture

PATH = "/v1/chat/completions"
PARTS = [{"type": "text", "text": "And a text in parts."}]
ASK = {
    "model": "echo",
    "messages": [{"role": "user", "content": PARTS}, {"role": "user", "content": "Hi there"}],
    "store": True,
}
STRANGER = {"authorization": "Bearer b"}


async def asked(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post(PATH, json=ASK | fields)
    assert (answer.status_code, "x-interlingua-ignored" in answer.headers) == (200, False)
    if "stream" not in fields:
        return answer.json()  # type: ignore[no-any-return]
    first: dict[str, Any] = msgspec.json.decode(answer.text.splitlines()[0][6:])
    return first


@pytest.mark.slow
async def test_a_chat_is_stored_whole_or_streamed(tmp_path: Path) -> None:
    async with workers(tmp_path) as (one, other):
        whole = await asked(one, metadata={"run": "1"})
        streamed = await asked(one, stream=True, stream_options={"include_usage": True})
        assert (await other.get(f"{PATH}/{whole['id']}")).json() == whole | {"metadata": {"run": "1"}}
        kept = (await other.get(f"{PATH}/{streamed['id']}")).json()
        assert kept["choices"] == whole["choices"]
        assert (kept["usage"], kept["metadata"], kept["object"]) == (whole["usage"], {}, "chat.completion")
        page = (await other.get(f"{PATH}/{whole['id']}/messages?limit=1")).json()
        assert (page["data"], page["has_more"]) == (
            [{"content": None, "role": "user", "content_parts": PARTS, "id": f"{whole['id']}-0"}],
            True,
        )
        rest = (await other.get(f"{PATH}/{whole['id']}/messages?after={page['last_id']}")).json()["data"]
        assert (rest[0]["content"], rest[0]["content_parts"]) == ("Hi there", None)
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages")):
            lost = await one.request(method, f"{PATH}/{whole['id']}{path}", headers=STRANGER)
            assert (lost.status_code, lost.json()["error"]["type"]) == (404, "invalid_request_error")
        assert (await one.get(PATH, headers=STRANGER)).json()["data"] == []


@pytest.mark.slow
async def test_chats_are_listed_changed_and_deleted(tmp_path: Path) -> None:
    async with workers(tmp_path, "echo", "many") as (one, other):
        ids = [(await asked(one, metadata={"run": str(n), "all": "yes"}, max_tokens=1))["id"] for n in range(3)]
        await asked(one, model="many", max_tokens=1)
        await asked(other, store=False, max_tokens=1)
        listed = (await other.get(f"{PATH}?limit=2&metadata[all]=yes")).json()
        assert ([each["id"] for each in listed["data"]], listed["has_more"]) == (ids[:2], True)
        rest = (await other.get(f"{PATH}?after={ids[1]}&model=echo")).json()
        assert ([each["id"] for each in rest["data"]], rest["has_more"]) == (ids[2:], False)
        newest = (await one.get(f"{PATH}?order=desc&metadata[run]=1&metadata[all]=yes")).json()
        assert [each["id"] for each in newest["data"]] == [ids[1]]
        changed = await other.post(f"{PATH}/{ids[0]}", json={"metadata": {"run": "9"}})
        assert changed.json()["metadata"] == {"run": "9"}
        assert (await one.get(f"{PATH}/{ids[0]}")).json() == changed.json()
        deleted = await one.delete(f"{PATH}/{ids[0]}")
        assert deleted.json() == {"id": ids[0], "object": "chat.completion.deleted", "deleted": True}
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("POST", "")):
            assert (await other.request(method, f"{PATH}/{ids[0]}{path}", json={"metadata": {}})).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("metadata", [{"a": 5}, {"a": "b" * 513}])
async def test_metadata_that_cannot_be_stored_is_refused(tmp_path: Path, metadata: dict[str, Any]) -> None:
    async with workers(tmp_path) as (one, _):
        answer = await one.post(PATH, json=ASK | {"metadata": metadata})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata.a")
