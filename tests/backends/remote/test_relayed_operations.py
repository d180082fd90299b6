"""Operations that only a remote of the client's dialect has: relayed as they came, else refused by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from adapters.openai.relay import RELAY_ROUTES
from adapters.openai.responses.compact import COMPACT
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.upstream import Asked, Step, Upstream, response, upstream
from tests.gateway.serving import running

RANKED = b'{"id":"r","results":[{"index":1,"relevance_score":0.5}],"x_new":[1, 2.50]}'


@asynccontextmanager
async def over(answers: dict[str, bytes]) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream]]:
    """A gateway over a server with these answers by path, and a 404 for all others."""

    def play(asked: Asked) -> tuple[Step, ...]:
        answer = answers.get(asked.line.split()[1])
        return (response(b'{"detail":"Not Found"}', "404 Not Found") if answer is None else answer,)

    async with upstream(play) as there:
        url = there.url
        backends = {
            "far": {"kind": "openai", "url": f"{url}/v1", "headers": {"x-fixed": "1"}},
            "claude": {"kind": "anthropic", "url": url},
            "tgi": {"kind": "tgi", "url": url},
            "cohere": {"kind": "cohere", "url": url},
            "s": {"kind": "scripted"},
        }
        endpoints = {
            name: Endpoint(served_entities=(ServedEntity(name=name, backend=name, model="renamed"),))
            for name in backends
        }
        app = create_app(Config(backends=backends, endpoints=endpoints))
        async with running(app) as client:
            yield client, there


async def test_a_body_and_its_answer_pass() -> None:
    body = {"model": "far", "query": "q", "documents": ["a", "b"], "x_new": {"a": [1, None]}}
    async with over({"/v1/rerank": response(RANKED)}) as (client, there):
        for path in ("/v1/rerank", "/rerank"):
            reply = await client.post(path, json=body, headers={"authorization": "Bearer of-the-client"})
            assert (reply.status_code, reply.content) == (200, RANKED)
            assert reply.headers["served-model-name"] == "far"
        asked = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert [each.line.split()[1] for each in asked] == ["/v1/rerank"] * 2
        assert json.loads(asked[0].body) == body | {"model": "renamed"}
        assert "authorization" not in asked[0].headers
        metrics = (await client.get("/metrics")).text.splitlines()
        assert any('"rerank"' in line and 'outcome="ok"' in line for line in metrics)


async def test_cohere_ranks_at_one_path() -> None:
    body = {"model": "cohere", "query": "q", "documents": ["a", "b"], "top_n": 1}
    async with over({"/v2/rerank": response(RANKED)}) as (client, there):
        for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
            reply = await client.post(path, json=body)
            assert (reply.status_code, reply.content) == (200, RANKED)
        asked = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert [each.line.split()[1] for each in asked] == ["/v2/rerank"] * 3
        assert json.loads(asked[0].body) == body | {"model": "renamed"}
        refused = await client.post("/v1/score", json={"model": "cohere", "text_1": "a", "text_2": "b"})
        assert refused.status_code == 404
        assert not any("score" in each.line for each in there.asked)


@pytest.mark.slow
async def test_a_form_passes() -> None:
    sound = bytes(range(256)) * 8
    spoken = response(b'{"text":"Hi"}')
    async with over({"/v1/audio/transcriptions": spoken}) as (client, there):
        reply = await client.post(
            "/v1/audio/transcriptions", data={"model": "far", "language": "en"}, files={"file": ("a.wav", sound)}
        )
        assert (reply.status_code, reply.json()) == (200, {"text": "Hi"})
        [asked] = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert asked.headers["content-type"].startswith("multipart/form-data; boundary=")
        assert sound in asked.body
        assert b'name="model"\r\n\r\nrenamed\r\n' in asked.body
        refused = await client.post("/v1/chat/completions", files={"file": b"x"})
        assert refused.status_code == 415


@pytest.mark.slow
async def test_an_answer_of_any_media_type_passes() -> None:
    sound = response(b"\xff\xfb").replace(b"application/json", b"audio/mpeg")
    async with over({"/v1/audio/speech": sound}) as (client, _):
        reply = await client.post("/v1/audio/speech", json={"model": "far", "input": "Hi", "voice": "x"})
        assert (reply.content, reply.headers["content-type"]) == (b"\xff\xfb", "audio/mpeg")


async def test_a_conversation_is_compacted_by_the_remote() -> None:
    made = b'{"id":"resp_1","object":"response.compaction","output":[{"type":"compaction","encrypted_content":"x"}]}'
    async with over({"/v1/responses/compact": response(made)}) as (client, there):
        body = {"model": "far", "input": [{"role": "user", "content": "Hi"}], "instructions": None}
        reply = await client.post("/v1/responses/compact", json=body)
        assert (reply.status_code, reply.content) == (200, made)
        [asked] = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert json.loads(asked.body) == body | {"model": "renamed"}
        refused = await client.post("/v1/responses/compact", json={"model": "far", "previous_response_id": "resp_0"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")


async def test_a_conversation_is_compacted_by_a_model_where_the_remote_does_not() -> None:
    chat = {"id": "c", "model": "renamed", "choices": [{"index": 0, "message": {"content": "All."}}]}
    chat["choices"][0]["finish_reason"] = "stop"  # type: ignore[index]
    body = {"input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}
    async with over({"/v1/chat/completions": response(json.dumps(chat).encode())}) as (client, there):
        for model in ("far", "s"):
            reply = await client.post("/v1/responses/compact", json=body | {"model": model})
            assert reply.status_code == 200, reply.text
            assert [item["type"] for item in reply.json()["output"]] == ["message", "compaction"]
        asked = [asked.line.split()[1] for asked in there.asked if asked.line.startswith("POST")]
        assert asked == ["/v1/responses/compact", "/v1/chat/completions"]


async def test_what_groq_could_not_read_reaches_the_client() -> None:
    written = '{"name": "get_weather", "arguments": {"city": Paris}}'
    error = {
        "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": written,
    }
    answer = response(json.dumps({"error": error}).encode(), "400 Bad Request")
    async with over({"/v1/chat/completions": answer}) as (client, _):
        body = {"model": "far", "messages": [{"role": "user", "content": "Hi"}]}
        for stream in (False, True):
            reply = await client.post("/v1/chat/completions", json=body | {"stream": stream})
            assert (reply.status_code, reply.json()["error"]) == (400, error | {"param": None})
        claude = {"model": "far", "messages": body["messages"], "max_tokens": 5}
        assert written not in (await client.post("/v1/messages", json=claude)).text


@pytest.mark.slow
@pytest.mark.parametrize("model", ["far", "claude", "tgi", "s"])
async def test_what_nobody_has_is_refused_by_name(model: str) -> None:
    async with over({}) as (client, _):
        for route in RELAY_ROUTES:
            if route.name == COMPACT:  # any model does it
                continue
            reply = await client.post(route.path, json={"model": model})
            error = reply.json()["error"]
            assert reply.status_code == 404, reply.text
            assert f"'{'renamed' if model == 'far' else model}'" in error["message"]
        assert (await client.post("/v1/rerank", json=[])).status_code == 400
        assert (await client.post("/v1/rerank", json={"model": "nobody"})).status_code == 404


@pytest.mark.slow
async def test_tokens_are_counted_by_the_remote_where_it_can() -> None:
    count = response(b'{"input_tokens":7,"x_new":1}')
    tokens = response(b'{"count":1,"max_model_len":9,"tokens":[5],"x_new":1}')
    async with over({"/v1/messages/count_tokens": count, "/tokenize": tokens}) as (client, there):
        body = {"model": "claude", "messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}
        reply = await client.post("/v1/messages/count_tokens", json=body, headers={"anthropic-beta": "b"})
        assert reply.json() == {"input_tokens": 7, "x_new": 1}
        [asked] = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert json.loads(asked.body) == body | {"model": "renamed"}
        assert asked.headers["anthropic-beta"] == "b"
        refused = await client.post("/v1/messages/count_tokens", json=body | {"model": "s"})
        assert refused.status_code == 400
        assert "document" in refused.text
        reply = await client.post("/tokenize", json={"model": "far", "prompt": "x"})
        assert reply.json()["x_new"] == 1
        reply = await client.post("/tokenize", json={"inputs": "x"}, headers={"x-gateway-model-name": "tgi"})
        assert reply.json()["x_new"] == 1


async def test_models_here_tokenize_in_both_protocols_words() -> None:
    async with over({}) as (client, _):
        body = {"model": "s", "prompt": "one two", "return_token_strs": True}
        answer = (await client.post("/tokenize", json=body)).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > 0
        assert "".join(answer["token_strs"]).endswith("one two")
        assert "token_strs" in (await client.post("/tokenize", json={"model": "s", "prompt": "x"})).json()
        chat = {"model": "s", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await client.post("/tokenize", json=chat)).json()["count"] > 0
        assert (await client.post("/tokenize", json=chat | {"add_generation_prompt": False})).status_code == 400
        text = (await client.post("/detokenize", json={"model": "s", "tokens": answer["tokens"]})).json()["prompt"]
        assert text.endswith("one two")
        assert (await client.post("/detokenize", json={"model": "s", "tokens": [10**7]})).status_code == 400
        tgi = (await client.post("/tokenize", json={"inputs": "one two"}, headers={"x-gateway-model-name": "s"})).json()
        assert [token["id"] for token in tgi] == answer["tokens"]
        assert "error_type" in (await client.post("/tokenize", json={})).json()
