"""Literal bytes, file by file: the shapes of recorded traffic, and the endpoints that the SDK reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import BackendFailed, ModelNotFound
from schemas.ir import Embed, Embeddings, Events, Generate, Usage
from tests.adapters.databricks.scenes import GOLDEN, ROUTES, call, chat, completion, query, server
from tests.adapters.openai.scenes import CALLS, ECHOED, REASONING, SCORED, TWO, USAGE, ZOE

TOOLS = [{"type": "function", "function": {"name": name, "description": "d"}} for name in ("get_weather", "get_time")]
STREAM = {"stream": True}

Ask = Callable[..., Generate]
SCENES: dict[str, tuple[Ask, dict[str, Any], Events]] = {
    "chat.json": (chat, {}, ZOE),
    "chat.sse": (chat, STREAM, ZOE),
    "chat-uncounted.sse": (chat, STREAM, REASONING),
    "chat-logprobs.json": (chat, {"logprobs": True, "top_logprobs": 2}, SCORED),
    "chat-logprobs.sse": (chat, STREAM | {"logprobs": True, "top_logprobs": 1}, SCORED),
    "chat-n.json": (chat, {"n": 2}, TWO),
    "chat-n.sse": (chat, STREAM | {"n": 2}, TWO),
    "chat-tools.json": (chat, {"tools": TOOLS}, CALLS),
    "chat-tools.sse": (chat, STREAM | {"tools": TOOLS}, CALLS),
    "completion.json": (completion, {}, ZOE),
    "completion.sse": (completion, STREAM, ZOE),
    "completion-echo-suffix.json": (completion, {"echo": True, "suffix": " The end."}, ZOE),
    "completion-echo-suffix.sse": (completion, STREAM | {"echo": True, "suffix": " The end."}, ZOE),
    "completion-echo-logprobs.json": (completion, {"echo": True, "logprobs": 1, "use_raw_prompt": True}, ECHOED),
    "completion-prompts.json": (completion, {"prompt": ["One", "Two"]}, TWO),
}


def render(file: str) -> bytes:
    ask, fields, events = SCENES[file]
    request = ask(**fields)
    if request.stream:
        return server().encoder(request).feed(events)
    return server().encode(request, fold(events)).body


@pytest.mark.parametrize("file", SCENES)
def test_answers(file: str) -> None:
    assert render(file) == (GOLDEN / file).read_bytes()


def test_a_stream_has_no_usage_chunk_of_its_own() -> None:
    assert server().encoder(chat(**USAGE)).feed(ZOE) == (GOLDEN / "chat.sse").read_bytes()


def test_the_usage_chunk_of_openai_is_an_option() -> None:
    data = server(usage_on_every_chunk=False).encoder(chat(**USAGE)).feed(ZOE)
    assert data.count(b'"usage":null') == 5
    assert b'"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}' in data


@pytest.mark.parametrize("ask", [chat, completion])
def test_failed_streams_end_with_both_forms_of_the_error(ask: Ask) -> None:
    encoder = server().encoder(ask(stream=True))
    data = encoder.feed(ZOE[:2]) + encoder.fail(BackendFailed("The backend failed.", code="upstream_malformed"))
    assert data == (GOLDEN / f"{ask.__name__}-failed.sse").read_bytes()
    assert b"[DONE]" not in data
    last = json.loads(data.split(b"data: ")[-1])
    assert last["error"]["message"] == last["message"] == "The backend failed."
    assert last["error_code"] == "INTERNAL_ERROR"


@pytest.mark.parametrize(("operation", "file"), [("endpoints", "endpoints.json"), ("host", "host.json")])
def test_descriptions(operation: str, file: str) -> None:
    assert server().describe(ROUTES[operation], call(), b"").body == (GOLDEN / file).read_bytes()


def test_endpoint() -> None:
    reply = server().describe(ROUTES["endpoint"], call(name="chat"), b"")
    assert reply.body == (GOLDEN / "endpoint.json").read_bytes()
    with pytest.raises(ModelNotFound, match="Endpoint with name 'none' does not exist"):
        server().describe(ROUTES["endpoint"], call(name="none"), b"")


def test_embeddings() -> None:
    request = query({"input": "a", "instruction": "Represent this: "})
    assert isinstance(request, Embed)
    assert request.instruction == "Represent this: "
    assert server().encode_embeddings(request, Embeddings("bge", ((0.5,),), Usage(3, 0))).body == (
        b'{"id":"r1","object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}],'
        b'"model":"bge","usage":{"prompt_tokens":3,"total_tokens":3}}'
    )
