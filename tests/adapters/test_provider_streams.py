"""Providers' streams through every chat protocol, cut at every byte: text, calls, reasoning, finish reason and usage.

To a client of the remote's own dialect every field passes.
"""

from __future__ import annotations

import json
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
from tests.recordings.reading import frames, heard

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
    FinishReason.EOS: {"stop", "completed"},
    FinishReason.LENGTH: {"length", "incomplete"},
    FinishReason.TOOL_CALL: {"tool_calls", "completed"},
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
            # All there is, in the provider's own form.
            assert written == recorded.events
            continue
        said = heard(written)
        assert (said.text, said.reasoning) == (recorded.text, recorded.reasoning)
        assert said.calls == tuple((name, json.loads(arguments)) for name, arguments in recorded.calls)
        assert said.finish in FINISH[recorded.finish]
        assert said.usage == recorded.usage
