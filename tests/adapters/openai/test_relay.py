"""Answers of a remote of the client's own dialect are relayed, with fields that the gateway does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Reply
from adapters.fold import fold
from adapters.openai import ADAPTER
from schemas.ir import Generate
from tests.adapters.openai.scenes import ROUTES, call

DIALECT = ADAPTER.dialects["openai"]
SERVER, CLIENT = ADAPTER.server(DIALECT), ADAPTER.client(DIALECT)
CHUNKS = (
    b'{"id":"x","object":"chat.completion.chunk","created":1,"model":"far","new":{"a":1},"choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"","mood":"good"},"logprobs":null,"finish_reason":null}],"usage":null}',
    b'{"id":"x","model":"far","choices":[],"content_filter_results":[1]}',
    b'{"id":"x","model":"far","choices":[{"index":0,"delta":{"content":"Hi\xe2\x80\xa8"},"finish_reason":null}]}',
    b'{"id":"x","model":"far","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null,"z":[]}]}',
)
USAGE = b'{"id":"x","model":"far","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
WHOLE = (
    b'{"id":"x","object":"chat.completion","created":1,"model":"far","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Hi","mood":"good"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,'
    b'"total_tokens":5,"cost":0.1},"new":true}'
)


def ask(**fields: Any) -> Generate:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
    request = SERVER.decode(ROUTES["chat"], json.dumps(body).encode(), call())
    assert isinstance(request, Generate)
    return request


def through(request: Generate, *chunks: bytes) -> bytes:
    reader, writer = CLIENT.decoder(request), SERVER.encoder(request)
    data = b"".join(b"data: %b\n\n" % chunk for chunk in chunks) + b"data: [DONE]\n\n"
    return writer.feed(reader.feed(data) + reader.close())


def test_a_whole_answer() -> None:
    request = ask()
    assert SERVER.encode(request, fold(CLIENT.decode(request, Reply(WHOLE)))).body == WHOLE


def test_a_relayed_stream_keeps_a_usage_that_the_client_asked_for() -> None:
    request = ask(stream=True, stream_options={"include_usage": True})
    written = [chunk.replace(b"\xe2\x80\xa8", b"\\u2028") for chunk in (*CHUNKS, USAGE)]
    assert through(request, *CHUNKS, USAGE) == b"".join(b"data: %b\n\n" % one for one in (*written, b"[DONE]"))


def test_a_relayed_stream_loses_a_usage_that_only_the_gateway_asked_for() -> None:
    written = through(ask(stream=True), *CHUNKS, USAGE)
    assert b'"usage"' not in written
    assert b'"new":{"a":1}' in written
    assert b'"mood":"good"' in written
    assert written.count(b"data: ") == len(CHUNKS) + 1
    assert written.endswith(b"data: [DONE]\n\n")


def test_an_event_of_several_lines_is_relayed() -> None:
    lines = json.dumps(json.loads(CHUNKS[3]), indent=1).encode()
    reader, request = CLIENT.decoder(ask(stream=True)), ask(stream=True)
    data = b"".join(b"data: %b\n" % line for line in lines.split(b"\n")) + b"\n"
    written = SERVER.encoder(request).feed(reader.feed(data) + reader.close())
    assert [json.loads(line[6:]) for line in written.splitlines() if line.startswith(b"data: {")] == [json.loads(lines)]


@pytest.mark.parametrize("dialect", ["mindie-openai"])
def test_the_answer_of_another_dialect_is_not_relayed(dialect: str) -> None:
    client = ADAPTER.client(ADAPTER.dialects[dialect])
    request = ask()
    answer = SERVER.encode(request, fold(client.decode(request, Reply(WHOLE)))).body
    assert b"mood" not in answer
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hi"


def test_an_answer_to_which_the_gateway_adds_is_not_relayed() -> None:
    body = json.dumps({"model": "m", "prompt": "Hi", "echo": True}).encode()
    request = SERVER.decode(ROUTES["completions"], body, call())
    assert isinstance(request, Generate)
    written = b'{"id":"x","model":"far","choices":[{"index":0,"text":" there","finish_reason":"stop"}],"new":1}'
    answer = SERVER.encode(request, fold(CLIENT.decode(request, Reply(written)))).body
    assert json.loads(answer)["choices"][0]["text"] == "Hi there"
    assert b"new" not in answer
