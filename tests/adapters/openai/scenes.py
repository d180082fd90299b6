"""A catalog, requests and event streams, for the tests of this folder and of `databricks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapters.base import Call, Reply
from adapters.dialect import option_names, with_options
from adapters.openai.client import OpenAIClient
from adapters.openai.dialects import DIALECTS, Dialect
from adapters.openai.server import OpenAIServer
from schemas.catalog import Catalog, ModelCard, ServedEntity
from schemas.ir import (
    Delta,
    Embed,
    Events,
    Finished,
    FinishReason,
    Generate,
    Started,
    Token,
    ToolDelta,
    TopToken,
    Usage,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "openai"
ROUTES = {route.name: route for route in OpenAIServer.routes}
NOW = 1700000000.9

CARD = ModelCard(
    name="chat",
    created=1690000000,
    context_length=2048,
    served_entities=(
        ServedEntity("current", "llama-3", 90),
        ServedEntity("challenger", "llama-4", 10, state="loading"),
    ),
)
CATALOG = Catalog({"chat": CARD, "org/other": ModelCard(name="org/other", task="embeddings", ready=False)}, "chat")

HELLO = [{"role": "user", "content": "Hello"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def now() -> float:
    return NOW


def dialect(name: str, **options: Any) -> Dialect:
    """The dialect `name` with some fields set, as a configuration names them."""
    assert set(options) <= set(option_names(DIALECTS[name]))
    return with_options(DIALECTS[name], options)


def server(name: str = "openai", **options: Any) -> OpenAIServer:
    return OpenAIServer(dialect(name, **options), now)


def client(name: str = "openai", **options: Any) -> OpenAIClient:
    return OpenAIClient(dialect(name, **options))


def call(request_id: str = "r1", **path: str) -> Call:
    return Call(request_id, CATALOG, path)


def chat(name: str = "openai", *, options: dict[str, Any] | None = None, **fields: Any) -> Generate:
    """A chat as the server codec decodes it."""
    body = json.dumps({"model": "chat", "messages": HELLO} | fields).encode()
    request = server(name, **(options or {})).decode(ROUTES["chat"], body, call())
    assert isinstance(request, Generate)
    return request


def completion(name: str = "openai", *, options: dict[str, Any] | None = None, **fields: Any) -> Generate:
    """A completion as the server codec decodes it."""
    body = json.dumps({"model": "chat", "prompt": "Once"} | fields).encode()
    request = server(name, **(options or {})).decode(ROUTES["completions"], body, call())
    assert isinstance(request, Generate)
    return request


def embed(**fields: Any) -> Embed:
    """A request for embeddings as the server codec decodes it."""
    body = json.dumps({"model": "org/other", "input": "a"} | fields).encode()
    request = server().decode(ROUTES["embeddings"], body, call())
    assert isinstance(request, Embed)
    return request


def reply(body: Any, status: int = 200, *headers: tuple[str, str]) -> Reply:
    return Reply(body if isinstance(body, bytes) else json.dumps(body).encode(), status, headers=headers)


def events_of(client: Any, request: Generate, data: bytes) -> Events:
    """The events that a client codec decodes from a complete stream."""
    reader = client.decoder(request)
    return (*reader.feed(data), *reader.close())


def said(*texts: str, prompt: int = 7, **end: Any) -> Events:
    """A stream with one delta of one token for each text."""
    end = {"reason": FinishReason.EOS} | end
    deltas = (Delta(text=text, tokens=(Token(place, text),)) for place, text in enumerate(texts))
    return (Started("llama-3", prompt), *deltas, Finished(**end), Usage(prompt, len(texts)))


ZOE = said("Zo", "ë says\n", '"你好 🙂"\\')

TOPS = (TopToken(1, "He", -0.25), TopToken(2, "Hi", -1.5))
SCORED: Events = (
    Started("llama-3", 3),
    Delta(text="He", tokens=(Token(1, "He", -0.25, top=TOPS),)),
    Delta(tokens=(Token(7, "", -0.5, top=(TopToken(7, "\ufffd", -0.5, b"\xf0\x9f"),), bytes=b"\xf0\x9f"),)),
    Delta(text="🙂", tokens=(Token(8, "🙂", -2.0, top=(TopToken(9, "x", -0.125),), bytes=b"\x99\x82"),)),
    Finished(reason=FinishReason.EOS, tokens=(Token(0, "</s>", -0.0625, special=True),)),
    Usage(3, 4),
)
"""A split character, alternatives of tokens, and an end token."""

PROMPT_TOKENS = ((Token(0, "<s>", special=True), Token(5, "On", -1.0), Token(6, "ce", -2.0, top=TOPS)),)
ECHOED: Events = (Started("llama-3", 3, PROMPT_TOKENS), *SCORED[1:])

CALLS: Events = (
    Started("llama-3", 20),
    Delta(tool_calls=(ToolDelta(0, "call_a", "get_weather"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"city":'),)),
    Delta(tool_calls=(ToolDelta(0, arguments='"Paris"}'), ToolDelta(1, "call_b", "get_time", "{}"))),
    Finished(reason=FinishReason.TOOL_CALL),
    Usage(20, 12),
)

TWO: Events = (
    Started("llama-3", 4),
    Delta(choice=1, text="b"),
    Delta(choice=0, text="a"),
    Finished(choice=1, text="B", reason=FinishReason.STOP_STRING, stop="."),
    Finished(choice=0, text="A", reason=FinishReason.LENGTH),
    Usage(4, 4),
)
"""Two interleaved choices without tokens."""

REASONING: Events = (
    Started("llama-3"),
    Delta(reasoning="Hm. "),
    Delta(reasoning="Well.", text="No"),
    Finished(text=".", reason=FinishReason.EOS),
    Usage(4, 5, cached_tokens=2, reasoning_tokens=3),
)

REFUSED: Events = (
    Started("llama-3", 4),
    Delta(refusal="I "),
    Delta(refusal="won't."),
    Finished(reason=FinishReason.CONTENT_FILTER),
    Usage(4, 3),
)
