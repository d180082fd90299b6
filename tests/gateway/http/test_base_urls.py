"""Requests to a wrong base URL, or for a name in other letters, are refused with what is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.app import create_app
from gateway.config import parse
from tests.gateway.serving import MESSAGES, running

CONFIG = """
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{ name = "a", backend = "s", model = "echo" }]
[endpoints.compared]
served_entities = [
  { name = "a", backend = "s", traffic_percentage = 50 }, { name = "b", backend = "s", traffic_percentage = 50 }
]
"""
OPENAI = {"type": "invalid_request_error", "param": None, "code": "unknown_url"}


def no_path(path: str, other: str) -> str:
    return f"There is no such path: {path}. There is {other}: change the client's base URL."


@pytest.mark.parametrize(
    ("path", "other", "error"),
    [
        ("/chat/completions", "/v1/chat/completions", lambda text: {"error": OPENAI | {"message": text}}),
        ("/v1/v1/chat/completions", "/v1/chat/completions", lambda text: {"error": OPENAI | {"message": text}}),
        (
            "/v1/chat/completions/chat/completions",
            "/v1/chat/completions",
            lambda text: {"error": OPENAI | {"message": text}},
        ),
        (
            "/v1/v1/messages",
            "/v1/messages",
            lambda text: {"type": "error", "error": {"type": "not_found_error", "message": text}, "request_id": "r"},
        ),
        ("/v1/generate", "/generate", lambda text: {"error": text, "error_type": "not_found"}),
        ("/v1/api/chat", "/api/chat", lambda text: {"error": text}),
        (
            "/v1beta/v1beta/models/chat:generateContent",
            "/v1beta/models/chat:generateContent",
            lambda text: {"error": {"code": 404, "message": text, "status": "NOT_FOUND"}},
        ),
    ],
)
async def test_a_wrong_base_url_is_named(path: str, other: str, error: Any) -> None:
    async with running(create_app(parse(CONFIG))) as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 404
        assert json.loads(answer.text.replace(answer.headers["x-request-id"], "r")) == error(no_path(path, other))


@pytest.mark.parametrize("path", ["/generat", "/predict_all", "/v1"])
async def test_of_a_path_that_nobody_means_no_other_one_is_named(path: str) -> None:
    async with running(create_app(parse(CONFIG))) as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 404
        assert "base URL" not in answer.text


async def test_a_base_url_with_a_slash_at_its_end_is_named() -> None:
    async with running(create_app(parse(CONFIG))) as client:
        answer = await client.post(f"{str(client.base_url).rstrip('/')}//v1/messages", json={})
        text = "There is no such path: //v1/messages. It has two slashes in a row: change the client's base URL."
        id = answer.headers["request-id"]
        error = {"type": "error", "error": {"type": "not_found_error", "message": text}, "request_id": id}
        assert (answer.status_code, answer.json()) == (404, error)


@pytest.mark.parametrize("path", ["/nope", "/v1/chat/completion", "/v2/chat/completions", "/a/b/c", "/"])
async def test_nothing_is_guessed_without_a_reason(path: str) -> None:
    async with running(create_app(parse(CONFIG))) as client:
        answer = await client.put(path, json={})
        assert answer.status_code in (404, 405)
        assert "base URL" not in answer.text


@pytest.mark.parametrize(("given", "meant"), [("Chat", "chat"), ("COMPARED", "compared"), ("Chat:A", "chat:a")])
async def test_a_name_in_other_letters_is_named(given: str, meant: str) -> None:
    async with running(create_app(parse(CONFIG))) as client:
        answer = await client.post("/v1/chat/completions", json={"model": given, "messages": MESSAGES})
        assert answer.status_code == 404
        text = f"The model '{given}' does not exist; did you mean '{meant}'? Case matters."
        assert answer.json()["error"]["message"] == text
        answer = await client.post("/v1/chat/completions", json={"model": f"{given}s", "messages": MESSAGES})
        assert answer.json()["error"]["message"] == f"The model '{given}s' does not exist."
