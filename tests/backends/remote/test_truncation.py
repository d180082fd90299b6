"""`truncation: "auto"` of the Responses API over remotes: the oldest turns go while the server refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import running

TOO_LONG = {
    "openai": b'{"error":{"message":"Too long.","type":"invalid_request_error","code":"context_length_exceeded"}}',
    "vllm": b'{"object":"error","message":"This model\'s maximum context length is 4 tokens.","code":400}',
    "tgi": b'{"error":"Input validation error: `inputs` must have less than 4 tokens. Given: 9"}',
    "anthropic": b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 4"}}',
}
KINDS = {"openai": "openai", "vllm": "openai", "tgi": "tgi", "anthropic": "anthropic"}
ANSWERS = {
    "openai": {
        "id": "c",
        "model": "far",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    },
    "anthropic": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "far",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
}
TURNS = [{"role": role, "content": f"{role} {place}"} for place in range(20) for role in ("user", "assistant")]


def config(kind: str, url: str) -> Config:
    backends = {"far": {"kind": kind, "url": url}}
    return Config(
        backends=backends, endpoints={"m": Endpoint(served_entities=(ServedEntity(name="m", backend="far"),))}
    )


async def ask(server: str, room: int, **fields: Any) -> tuple[int, Any, list[list[str]]]:
    """Ask a server with room for so many messages: the status, the answer, and the user turns of each request."""
    sent: list[list[str]] = []

    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET "):
            return (response(b"{}"),)
        messages = json.loads(asked.body)["messages"]
        texts = [message["content"] for message in messages if message["role"] == "user"]
        sent.append([text if isinstance(text, str) else text[0]["text"] for text in texts])
        if len(messages) > room:
            return (response(TOO_LONG[server], "400 Bad Request"),)
        return (response(json.dumps(ANSWERS["anthropic" if server == "anthropic" else "openai"]).encode()),)

    question = {"role": "user", "content": "user 20"}
    async with upstream(play) as there, running(create_app(config(KINDS[server], there.url))) as client:
        body = {"model": "m", "instructions": "Be brief.", "input": [*TURNS, question]} | fields
        answer = await client.post("/v1/responses", json=body)
    return answer.status_code, answer.json(), sent


@pytest.mark.slow
@pytest.mark.parametrize("server", TOO_LONG)
async def test_the_oldest_turns_go_until_the_rest_is_taken(server: str) -> None:
    status, answer, sent = await ask(server, 32, truncation="auto")
    assert status == 200
    assert answer["output"][0]["content"][0]["text"] == "Hi"
    # Of 21 turns: all, then without 1, 2, 4 and 8.
    assert [len(turns) for turns in sent] == [21, 20, 19, 17, 13][: len(sent)]
    assert sent[-1] == [f"user {place}" for place in range(21 - len(sent[-1]), 21)]


async def test_the_last_turn_is_never_left_out_and_the_tries_are_few() -> None:
    status, answer, sent = await ask("openai", 0, truncation="auto")
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert [len(turns) for turns in sent] == [21, 20, 19, 17, 13, 5, 1]


async def test_nothing_is_left_out_unless_the_client_allows_it() -> None:
    status, _, sent = await ask("openai", 10)
    assert (status, len(sent)) == (400, 1)
