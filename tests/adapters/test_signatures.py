"""Signatures of calls, which Google's models want back: through every protocol that has a place for them, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters import anthropic, gemini, openai
from adapters.base import Call
from adapters.fold import fold
from schemas.catalog import Catalog
from schemas.ir import ChatPrompt, Delta, Events, Finished, FinishReason, Generate, Message, Started, ToolDelta, Usage

SIGNATURE = "c2lnbmF0dXJl"
HI = [{"role": "user", "content": "Hi"}]
EVENTS: Events = (
    Started("m", 3),
    Delta(tool_calls=(ToolDelta(0, "call_1", "f", '{"a":1}', SIGNATURE),)),
    Finished(reason=FinishReason.TOOL_CALL),
    Usage(3, 4),
)
CLIENTS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "openai": (openai.ADAPTER, "/v1/chat/completions", {"model": "m", "messages": HI}),
    "responses": (openai.ADAPTER, "/v1/responses", {"model": "m", "input": HI, "store": False}),
    "anthropic": (anthropic.ADAPTER, "/v1/messages", {"model": "m", "max_tokens": 9, "messages": HI}),
    "gemini": (
        gemini.ADAPTER,
        "/v1beta/models/{model}:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    ),
}


def ask(client: str, body: dict[str, Any]) -> tuple[Any, Generate]:
    adapter, path, _ = CLIENTS[client]
    server = adapter.server(adapter.dialects[adapter.name])
    route = next(each for each in server.routes if (each.method, each.path.replace(":path", "")) == ("POST", path))
    call = Call("r1", Catalog({}), path={"model": "m", "name": "m"})
    request = server.decode(route, json.dumps(body).encode(), call)
    assert isinstance(request, Generate)
    return server, request


def answered(client: str, *, stream: bool) -> list[dict[str, Any]]:
    """What a client adds to the conversation after an answer with the signed call, and its result."""
    server, request = ask(client, CLIENTS[client][2] | ({"stream": True} if stream and client != "gemini" else {}))
    if stream:
        encoder = server.encoder(request)
        written = b"".join(encoder.feed((event,)) for event in EVENTS).decode()
        events = [
            json.loads(line.removeprefix("data: ")) for line in written.splitlines() if line.startswith("data: {")
        ]
    else:
        events = [json.loads(server.encode(request, fold(EVENTS)).body)]
    return RETURNED[client](events, stream)


def _chat(events: list[dict[str, Any]], stream: bool) -> list[dict[str, Any]]:
    key = "delta" if stream else "message"
    (call,) = next(calls for event in events if (calls := event["choices"][0][key].get("tool_calls")))
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "5"}]


def _responses(events: list[dict[str, Any]], stream: bool) -> list[dict[str, Any]]:
    whole = events[-1]["response"] if stream else events[0]
    (call,) = whole["output"]
    return [call, {"type": "function_call_output", "call_id": "call_1", "output": "5"}]


def _messages(events: list[dict[str, Any]], stream: bool) -> list[dict[str, Any]]:
    started = next(event["content_block"] for event in events if "content_block" in event) if stream else None
    block = started | {"input": {"a": 1}} if started else events[0]["content"][0]
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "5"}
    return [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]


def _contents(events: list[dict[str, Any]], stream: bool) -> list[dict[str, Any]]:
    content = next(each for event in events if "parts" in (each := event["candidates"][0]["content"]) and each["parts"])
    result = {"functionResponse": {"id": "call_1", "name": "f", "response": {"output": "5"}}}
    return [content, {"role": "user", "parts": [result]}]


RETURNED = {"openai": _chat, "responses": _responses, "anthropic": _messages, "gemini": _contents}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_signature_comes_back_to_the_upstream(client: str, *, stream: bool) -> None:
    field = {"responses": "input", "gemini": "contents"}.get(client, "messages")
    body = CLIENTS[client][2]
    _, request = ask(client, body | {field: [*body[field], *answered(client, stream=stream)]})
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    (call,) = next(message.tool_calls for message in prompt.messages if message.tool_calls)
    assert (call.id, call.name, call.signature) == ("call_1", "f", SIGNATURE)
    assert not any("extra_content" in name or "ignature" in name for name in request.unknown)

    written = openai.ADAPTER.client(openai.ADAPTER.dialects["openai"]).encode(_anew(request)).body
    (sent,) = next(calls for each in json.loads(written)["messages"] if (calls := each.get("tool_calls")))
    assert sent["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
    written = gemini.ADAPTER.client(gemini.ADAPTER.dialects["gemini"]).encode(_anew(request)).body
    parts = [part for content in json.loads(written)["contents"] for part in content["parts"]]
    assert [part["thoughtSignature"] for part in parts if "functionCall" in part] == [SIGNATURE]


def _anew(request: Generate) -> Generate:
    """The request without its body, so that it is written anew."""
    return Generate(id="r", model="m", prompts=request.prompts, raw_prompt=False)


@pytest.mark.parametrize("client", CLIENTS)
def test_without_a_signature_nothing_is_written(client: str) -> None:
    server, request = ask(client, CLIENTS[client][2])
    unsigned = (EVENTS[0], Delta(tool_calls=(ToolDelta(0, "call_1", "f", "{}"),)), *EVENTS[2:])
    body = server.encode(request, fold(unsigned)).body
    assert b"extra_content" not in body
    assert b"ignature" not in body


def test_another_upstream_gets_no_signature() -> None:
    prompt = ChatPrompt((Message("user", "Hi"), *_turn()))
    client = anthropic.ADAPTER.client(anthropic.ADAPTER.dialects["anthropic"])
    assert (
        SIGNATURE.encode() not in client.encode(Generate(id="r", model="m", prompts=(prompt,), raw_prompt=False)).body
    )


def _turn() -> tuple[Message, ...]:
    (choice,) = fold(EVENTS).choices
    result = Message("tool", "5", tool_call_id="call_1")
    return (Message("assistant", None, tool_calls=choice.tool_calls), result)
