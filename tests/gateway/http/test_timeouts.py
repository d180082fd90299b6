"""`error_behavior: "truncate"`: after a time-out, what the backend sent so far is the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.serving import running, scripted

TRUNCATE = {"prompt": "hi", "use_raw_prompt": True, "error_behavior": "truncate"}


async def ask(model: str, **fields: Any) -> Any:
    app, _ = scripted(model)
    async with running(app) as client:
        return await client.post(f"/serving-endpoints/{model}/invocations", json=TRUNCATE | fields)


@pytest.mark.parametrize("n", [1, 2])
async def test_the_tokens_so_far_are_a_whole_answer(n: int) -> None:
    answer = await ask("timeout-after-4", n=n)
    assert answer.status_code == 200
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["length"] * n
    assert all(choice["text"] for choice in choices)
    assert answer.json()["usage"]["completion_tokens"] == 4


async def test_the_tokens_so_far_are_a_complete_stream() -> None:
    answer = await ask("timeout-after-2", stream=True)
    *chunks, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    last = json.loads(chunks[-1])
    assert (last["choices"][0]["finish_reason"], last["usage"]["completion_tokens"]) == ("length", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fields", "status"),
    [
        ("timeout-after-2", {"error_behavior": "error"}, 504),
        ("timeout", {}, 504),  # before the first event there is nothing to keep
        ("error-after-2", {}, 500),
    ],
)
async def test_what_fails_all_the_same(model: str, fields: dict[str, Any], status: int) -> None:
    assert (await ask(model, **fields)).status_code == status
