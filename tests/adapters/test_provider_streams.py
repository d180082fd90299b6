"""Providers' streams through every chat protocol, cut at every byte: text, calls, reasoning, finish reason and usage.

To a client of the remote's own dialect every field passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from adapters import anthropic, databricks, openai
from adapters.base import Call, ClientCodec, Route, ServerCodec
from adapters.fold import fold
from schemas.catalog import Catalog
from schemas.ir import ChatPrompt, Events, FinishReason, Generate, Message
from tests.adapters.provider_streams import STREAMS, Recorded

HI = [{"role": "user", "content": "Hi"}]
ADAPTERS = {adapter.name: adapter for adapter in (anthropic.ADAPTER, databricks.ADAPTER, openai.ADAPTER)}
USAGE = {"stream_options": {"include_usage": True}}
CLIENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "openai": ("openai", "/v1/chat/completions", {"model": "m", "messages": HI} | USAGE),
    "responses": ("openai", "/v1/responses", {"model": "m", "input": "Hi"}),
    "databricks": ("databricks", "/serving-endpoints/{name}/invocations", {"messages": HI}),
    "anthropic": ("anthropic", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": HI}),
}
FINISH = {
    FinishReason.EOS: {"stop", "end_turn", "completed"},
    FinishReason.LENGTH: {"length", "max_tokens", "incomplete"},
    FinishReason.TOOL_CALL: {"tool_calls", "tool_use", "completed"},
}


def remote(recorded: Recorded) -> ClientCodec:
    adapter = ADAPTERS[recorded.dialect]
    return adapter.client(adapter.dialects[recorded.dialect])


def decoded(recorded: Recorded, request: Generate, cuts: tuple[int, ...]) -> Events:
    reader, data = remote(recorded).decoder(request), recorded.data()
    edges = (0, *cuts, len(data))
    events: Events = ()
    for start, stop in pairwise(edges):
        events += reader.feed(data[start:stop])
    return events + reader.close()


def asked(protocol: str) -> tuple[ServerCodec, Generate]:
    name, path, body = CLIENTS[protocol]
    server = ADAPTERS[name].server(ADAPTERS[name].dialects[name])
    route: Route = next(route for route in server.routes if route.path == path)
    call = Call("r1", Catalog({}), path={"name": "m"})
    request = server.decode(route, json.dumps(body | {"stream": True}).encode(), call)
    assert isinstance(request, Generate)
    return server, request


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_every_cut_says_the_same(name: str) -> None:
    recorded = STREAMS[name]
    request = Generate(id="r", model="m", prompts=(ChatPrompt((Message("user", "Hi"),)),), stream=True)
    for cut in range(1, len(recorded.data())):
        answer = fold(decoded(recorded, request, (cut,)))
        [choice] = answer.choices
        assert (choice.text, choice.reasoning, choice.reason) == (recorded.text, recorded.reasoning, recorded.finish)
        assert tuple((call.name, call.arguments) for call in choice.tool_calls) == recorded.calls
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == recorded.usage


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", STREAMS)
def test_every_client_gets_it(name: str, client: str) -> None:
    recorded = STREAMS[name]
    server, request = asked(client)
    same = recorded.dialect == client
    # Without the origin a client of the dialect gets what all others get.
    for given in (request, replace(request, origin=None)) if same else (request,):
        encoder = server.encoder(request)
        events = decoded(recorded, given, tuple(range(1, len(recorded.data()))))
        written = list(frames(b"".join(encoder.feed((event,)) for event in events)))
        if same and given is request:
            assert written == recorded.events
        said = heard(written)
        assert said["text"] == recorded.text
        assert said["reasoning"] == recorded.reasoning
        assert said["calls"] == [json.loads(arguments) for _, arguments in recorded.calls]
        assert said["finish"] in FINISH[recorded.finish]
        assert said["usage"] == sum(recorded.usage)


def frames(data: bytes) -> Iterator[dict[str, Any]]:
    for frame in data.decode().split("\n\n"):
        line = next((line for line in frame.split("\n") if line.startswith("data: {")), None)
        if line is not None:
            yield json.loads(line[6:])


def heard(written: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client of any chat protocol makes of a stream."""
    text = reasoning = finish = ""
    usage = 0
    calls: dict[Any, str] = {}
    for frame in written:
        type = frame.get("type", "")
        for choice in frame.get("choices", ()):
            texts, thoughts = of_content(choice["delta"].get("content"))
            text += texts
            reasoning += thoughts + (choice["delta"].get("reasoning_content") or "")
            finish = choice["finish_reason"] or finish
            for place, call in enumerate(choice["delta"].get("tool_calls") or ()):
                index = call.get("index", place)
                calls[index] = calls.get(index, "") + call["function"]["arguments"]
        if "choices" in frame and frame.get("usage"):
            usage = frame["usage"]["total_tokens"]
        if type == "content_block_start" and frame["content_block"]["type"] == "tool_use":
            calls[frame["index"]] = ""
        if type == "content_block_delta":
            delta = frame["delta"]
            text, reasoning = text + delta.get("text", ""), reasoning + delta.get("thinking", "")
            if frame["index"] in calls:
                calls[frame["index"]] += delta.get("partial_json", "")
        if type == "message_start":
            usage = prompt_size(frame["message"]["usage"])
        if type == "message_delta":
            finish = frame["delta"]["stop_reason"]
            usage = (prompt_size(frame["usage"]) or usage) + frame["usage"]["output_tokens"]
        if type == "response.output_text.delta":
            text += frame["delta"]
        if type == "response.function_call_arguments.done":
            calls[frame["output_index"]] = frame["arguments"]
        if type.startswith("response.reasoning") and type.endswith(".delta"):
            reasoning += frame["delta"]
        if type in ("response.completed", "response.incomplete"):
            finish, usage = frame["response"]["status"], frame["response"]["usage"]["total_tokens"]
    arguments = [json.loads(call or "{}") for call in calls.values()]
    return {"text": text, "reasoning": reasoning, "calls": arguments, "finish": finish, "usage": usage}


def of_content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content that may be a list, as the providers' own SDKs read it."""
    if not isinstance(content, list):
        return content or "", ""
    thoughts = [each for part in content for each in part.get("thinking") or part.get("summary") or ()]
    return "".join(part.get("text", "") for part in content), "".join(each["text"] for each in thoughts)


def prompt_size(usage: dict[str, Any]) -> int:
    return sum(usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_read_", "cache_creation_"))
