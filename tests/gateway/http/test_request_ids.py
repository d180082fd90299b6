"""Each answer has the id of its request, also where the clients of its protocol look for it."""

from __future__ import annotations

import pytest

from tests.gateway.serving import MESSAGES, running, scripted

ASKED = {"model": "echo", "max_tokens": 9, "messages": MESSAGES}
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/messages", ASKED, 200),
        ("POST", "/v1/messages", ASKED | {"stream": True}, 200),
        ("POST", "/v1/messages", ASKED | {"model": "nobody"}, 404),
        ("POST", "/v1/messages", {}, 400),
        ("POST", "/v1/messages/count_tokens", {"model": "echo", "messages": MESSAGES}, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/messages", None, 405),
        ("POST", "/v1/v1/messages", ASKED, 404),
    ],
)
async def test_anthropics_clients_find_it(method: str, path: str, body: dict[str, object] | None, status: int) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.request(method, path, json=body, headers=VERSION)
    assert answer.status_code == status
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    if status != 200:
        assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/serving-endpoints/echo/invocations", "/v1/nothing"])
async def test_others_get_no_second_one(path: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.post(path, json=ASKED)
    assert answer.headers["x-request-id"]
    assert "request-id" not in answer.headers
