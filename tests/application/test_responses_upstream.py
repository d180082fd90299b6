"""Clients of every kind in front of a server that has OpenAI's Responses API, over sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.adapters.openai.remote.responses.scenes import (
    EVERYTHING,
    FUNCTION,
    NEW,
    REASONING,
    Json,
    failed,
    message,
    response,
    sse,
    stream,
)
from tests.faults.upstream import Asked, Close, Step, Upstream, upstream
from tests.faults.upstream import response as replied
from tests.gateway.serving import running

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-5-2026",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "chat"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}
WORDS = {"kind": "redact", "patterns": {"word": "Paris"}}


def chunks(data: bytes, *, whole: bool = True) -> tuple[Step, ...]:
    """A body in two chunks, and its end."""
    half = len(data) // 2
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:half], data[half:])]
    return (HEAD, *parts, b"0\r\n\r\n") if whole else (HEAD, *parts, Close())


def play(asked: Asked) -> tuple[Step, ...]:
    if asked.line.startswith("GET"):
        return (replied(b'{"data":[{"id":"gpt-5"}]}'),)
    if "/input_tokens" in asked.line:
        return (replied(b'{"object":"response.input_tokens","input_tokens":11}'),)
    if "/chat/completions" in asked.line:
        return (replied(json.dumps(CHAT).encode()),)
    output = (
        () if b"cut" in asked.body else EVERYTHING if b'"web_search"' in asked.body else (REASONING, message("Paris"))
    )
    if b"function_now" in asked.body:
        output = (FUNCTION,)
    if b'"stream":true' not in asked.body:
        return (replied(json.dumps(response(*output)).encode()),)
    if b"cut" in asked.body:
        return chunks(sse(stream(*EVERYTHING)[:-1]), whole=False)
    end = failed("server_error", "secret") if b"broken" in asked.body else None
    return chunks(sse(stream(*output, end=end)))


@asynccontextmanager
async def gateway(kind: str, **more: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream]]:
    async with upstream(play) as there:
        backend = {"kind": kind, "url": f"{there.url}/v1", "retries": {"attempts": 1}}
        endpoint = Endpoint(served_entities=(ServedEntity("e", "far", model="gpt-5"),), **more)
        filters = {"words": WORDS} if more else {}
        made = Config(backends={"far": backend}, endpoints={"m": endpoint}, filters=filters)
        async with running(create_app(made)) as client:
            yield client, there


def bodies(there: Upstream) -> list[Json]:
    return [json.loads(asked.body) for asked in there.asked if asked.line.startswith("POST")]


def said(answer: httpx.Response) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


ASK = {"model": "m", "input": "Hi", "tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"]}
KINDS = ("openai-responses", "responses")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_of_the_api_gets_what_the_server_says(kind: str) -> None:
    async with gateway(kind) as (client, there):
        whole = await client.post("/v1/responses", json=ASK)
        streamed = said(await client.post("/v1/responses", json=ASK | {"stream": True}))
        assert whole.json()["output"] == streamed[-1]["response"]["output"] == [*EVERYTHING]
        assert whole.json()["billing"] == {"payer": "developer"}
        assert [event["type"] for event in streamed] == [event["type"] for event in stream(*EVERYTHING)]
        assert "x-interlingua-ignored" not in whole.headers
        assert bodies(there) == [
            ASK | {"model": "gpt-5", "store": False},
            ASK | {"model": "gpt-5", "stream": True, "store": False},
        ]
        # Both are stored here, and continue each other.
        first = streamed[-1]["response"]["id"]
        assert (await client.get(f"/v1/responses/{first}")).json() == streamed[-1]["response"]
        more = {"input": [{"type": "item_reference", "id": NEW["id"]}], "previous_response_id": first}
        await client.post("/v1/responses", json=ASK | more)
        hi = {
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}],
        }
        assert bodies(there)[-1]["input"] == [hi, *EVERYTHING, NEW]
        counted = await client.post("/v1/responses/input_tokens", json=ASK | more)
        assert counted.json()["input_tokens"] == 11
        assert bodies(there)[-1] == ASK | {"model": "gpt-5", "input": bodies(there)[-2]["input"]}
        # The records of where items are, are no responses.
        place = f"item/{NEW['id']}"
        assert (await client.get(f"/v1/responses/{place.replace('/', '%2F')}")).status_code == 404
        assert (await client.post("/v1/responses", json=ASK | {"previous_response_id": place})).status_code == 400


async def test_the_input_may_be_elsewhere() -> None:
    async with gateway("openai-responses") as (client, there):
        prompt: Json = {"model": "m", "prompt": {"id": "pmpt_1", "variables": {"city": "Paris"}}}
        for asked in (prompt, prompt | {"input": None}):
            first = await client.post("/v1/responses", json=asked)
            assert first.status_code == 200, first.text
            assert bodies(there)[-1] == asked | {"model": "gpt-5", "store": False}
        # What was said in answer is all there is of the conversation.
        for field, id, items in (
            ("previous_response_id", first.json()["id"], ["reasoning", "message"]),
            ("conversation", await conversation(client), ["message"]),
        ):
            assert (await client.post("/v1/responses", json={"model": "m", field: id})).status_code == 200
            assert [item["type"] for item in bodies(there)[-1]["input"]] == items
        refused = await client.post("/v1/responses", json={"model": "m"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert refused.json()["error"]["code"] == "missing_required_parameter"


async def conversation(client: httpx.AsyncClient) -> str:
    """The id of a new conversation that has a message."""
    made = await client.post("/v1/conversations", json={"items": [{"role": "user", "content": "Hi"}]})
    id: str = made.json()["id"]
    return id


async def test_a_response_in_the_background_and_a_conversation() -> None:
    async with gateway("openai-responses") as (client, there):
        talk = (await client.post("/v1/conversations", json={})).json()["id"]
        asked = ASK | {"background": True, "stream": True, "conversation": talk}
        events = said(await client.post("/v1/responses", json=asked))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        last = events[-1]["response"]
        assert (last["status"], last["background"], last["conversation"]) == ("completed", True, {"id": talk})
        assert (await client.get(f"/v1/responses/{last['id']}")).json() == last
        later = await client.get(f"/v1/responses/{last['id']}?stream=true&starting_after=5")
        assert said(later) == events[6:]
        items = (await client.get(f"/v1/conversations/{talk}/items?order=asc")).json()["data"]
        assert [item["type"] for item in items] == ["message", *(item["type"] for item in EVERYTHING)]
        await client.post("/v1/responses", json=ASK | {"conversation": talk})
        assert bodies(there)[-1]["input"][1:-1] == [*EVERYTHING]


@pytest.mark.parametrize(("word", "code"), [("cut", "server_error"), ("broken", "server_error")])
async def test_an_end_that_is_none_is_a_failure(word: str, code: str) -> None:
    async with gateway("responses") as (client, _):
        events = said(await client.post("/v1/responses", json=ASK | {"input": word, "stream": True}))
        assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", code)
        assert "secret" not in json.dumps(events)
        chat = {"model": "m", "messages": [{"role": "user", "content": word}], "stream": True}
        answer = await client.post("/v1/chat/completions", json=chat)
        assert "error" in said(answer)[-1]
        assert "[DONE]" not in answer.text


CLIENTS: dict[str, tuple[str, Json]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "anthropic": ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
    "gemini": ("/v1beta/models/m:generateContent", {"contents": [{"parts": [{"text": "Hi"}]}]}),
    "ollama": ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": False}),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_clients_of_other_protocols_are_answered_in_their_own(name: str) -> None:
    path, body = CLIENTS[name]
    async with gateway("responses") as (client, there):
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "Paris" in answer.text
        assert "Looking" in answer.text or name == "gemini"  # whose clients ask for thoughts
        asked = bodies(there)[-1]
        assert (asked["model"], asked["store"]) == ("gpt-5", False)


async def test_chats_stay_chats_where_the_server_has_both() -> None:
    async with gateway("openai-responses") as (client, there):
        for path, body in CLIENTS.values():
            answer = await client.post(path, json=body)
            assert "chat" in answer.text
        assert all("/chat/completions" in asked.line for asked in there.asked if asked.line.startswith("POST"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_filter_sees_texts_and_what_it_cannot_see_is_refused(kind: str) -> None:
    async with gateway(kind, filters=("words",)) as (client, there):
        refused = await client.post("/v1/responses", json=ASK)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].type")
        assert bodies(there) == []
        answer = await client.post("/v1/responses", json={"model": "m", "input": "Paris?"})
        assert "Paris" not in answer.text
        assert "Paris" not in json.dumps(bodies(there))


async def test_what_only_the_api_has_is_refused_where_nobody_has_it() -> None:
    async with gateway("openai") as (client, there):
        refused = await client.post("/v1/responses", json=ASK)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("Tools of type 'web_search' are not supported.")
        assert bodies(there) == []
