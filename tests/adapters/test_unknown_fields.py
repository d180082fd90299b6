"""Unknown fields of every protocol's bodies, at every depth: refused, or named; never silent."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from adapters.base import Adapter, Call, Route
from adapters.dialect import with_options
from adapters.unknown_fields import IGNORED, find_unknown, ignored_header
from schemas.catalog import Catalog, ModelCard
from schemas.errors import RequestError
from schemas.openai.batches import FileUpload
from schemas.origin import Relay

ADAPTERS: dict[str, Adapter] = {point.name: point.load() for point in entry_points(group="gateway.adapters")}

IMAGE_URL = "data:image/png;base64,iVBORw0KGgo="
VIDEO_URL = "data:video/jpeg;base64,AAAA,AAAA"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
EXTRA = {"google": {"thought_signature": "c2ln"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": EXTRA}
CHAT = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": IMAGE_URL}},
                {"type": "video_url", "video_url": {"url": VIDEO_URL}},
            ],
        },
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "x", "tool_call_id": "c"},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [FUNCTION],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "structured_outputs": {"disable_fallback": True},
}
COMPLETION = {"model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
COMPLETION |= {"response_format": CHAT["response_format"], "structured_outputs": {"disable_fallback": True}}
RESPONSE = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "extra_content": EXTRA},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "conversation": {"id": "conv_1"},
}
EMBEDDING = {"model": "m", "input": "x"}
MESSAGES = {
    "model": "m",
    "max_tokens": 5,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "extra_content": EXTRA}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "u"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
TGI = {"inputs": "x", "parameters": {"max_new_tokens": 3, "grammar": {"type": "json", "value": SCHEMA}}}
INFER = {
    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}],
    "outputs": [{"name": "text_output"}],
}
CONFIG = {
    "served_entities": [{"name": "a", "entity_name": "b"}],
    "traffic_config": {"routes": [{"traffic_percentage": 100, "served_entity_name": "a"}]},
}

BODIES: dict[str, dict[str, Any]] = {
    "ChatRequest": CHAT,
    "CompletionRequest": COMPLETION,
    "ResponseRequest": RESPONSE,
    "CompactRequest": {"model": "m", "input": RESPONSE["input"], "instructions": "x"},
    "EmbeddingRequest": EMBEDDING,
    "RerankRequest": {"model": "m", "query": "x", "documents": ["y", {"text": "z"}]},
    "ScoreRequest": {"model": "m", "text_1": "x", "text_2": ["y"]},
    "ClassifyRequest": {"model": "m", "input": "x"},
    "RankTexts": {"model": "m", "query": "x", "texts": ["y"]},
    "Predict": {"model": "m", "inputs": "x"},
    "VectorsRequest": {"model": "m", "inputs": "x"},
    "PoolingRequest": {"model": "m", "input": "x"},
    "MessagesRequest": MESSAGES,
    "CountRequest": {name: value for name, value in MESSAGES.items() if name not in ("max_tokens", "metadata")},
    "GenerateRequest": TGI,
    "CompatGenerateRequest": TGI,
    "VertexRequest": {"instances": [TGI]},
    "InferRequest": INFER,
    "TokenizeRequest": {"model": "m", "messages": CHAT["messages"], "tools": [FUNCTION]},
    "DetokenizeRequest": {"model": "m", "tokens": [1]},
    "ConfigRequest": CONFIG,
    "CreateRequest": {"name": "new", "config": CONFIG},
    "AiGatewayRequest": {
        "usage_tracking_config": {"enabled": True},
        "fallback_config": {"enabled": False},
        "rate_limits": [{"renewal_period": "minute", "calls": 9}],
        "guardrails": {"input": {"pii": {"behavior": "MASK"}}},
    },
}
"""The name of a route's wire struct -> a body that has every struct within it."""

GEMINI_CHAT: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "x"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f"}}]},
        {"role": "user", "parts": [{"fileData": {"fileUri": "https://a.example/b.png"}}]},
    ],
    "systemInstruction": {"parts": [{"text": "x"}]},
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"temperature": 0.5, "thinkingConfig": {"includeThoughts": True}},
}
GEMINI: dict[str, dict[str, Any]] = {
    "generate": GEMINI_CHAT,
    "stream": GEMINI_CHAT,
    "count_tokens": {"generateContentRequest": GEMINI_CHAT},
    "embed": {"content": {"parts": [{"text": "x"}]}},
    "batch_embed": {"requests": [{"content": {"parts": [{"text": "x"}]}}]},
}
OLLAMA: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]},
            {"role": "tool", "content": "x", "tool_name": "f"},
        ],
        "tools": [FUNCTION],
        "options": {"temperature": 0.5},
    },
    "generate": {"model": "m", "prompt": "x", "options": {"temperature": 0.5}},
    "embed": {"model": "m", "input": ["x"], "options": {"seed": 1}},
    "embeddings": {"model": "m", "prompt": "x", "options": {"seed": 1}},
}
OF_ROUTES = {"gemini": GEMINI, "ollama": OLLAMA}
"""Likewise for protocols whose structs have the names of others': by the name of the route."""

FOREIGN = "not_a_field"
CATALOG = Catalog({"m": ModelCard(name="m", images=True)}, "m")


def bodies() -> Iterator[tuple[str, str, Route, dict[str, Any]]]:
    """Protocol, dialect, route and body of every route that reads a body."""
    for name, adapter in ADAPTERS.items():
        for dialect, table in adapter.dialects.items():
            for route in adapter.server(table).routes:
                if route.body is not None and route.kind not in ("describe", "object", "store"):
                    generate = name == "triton" and not route.name.startswith("infer")
                    known = OF_ROUTES[name][route.name] if name in OF_ROUTES else BODIES[route.body.__name__]
                    body = {"text_input": "x"} if generate else known
                    if dialect == "mindie-openai" and route.body.__name__ == "ChatRequest":
                        body = {"model": "m", "messages": CHAT["messages"]}
                    if dialect in ("tgi-0.9", "mindie") and route.name != "chat_tokenize":
                        body = {"inputs": "x", "parameters": {"max_new_tokens": 3}}
                        body = {"instances": [body]} if route.name == "vertex" else body
                    yield name, dialect, route, body


CASES = list(bodies())
IDS = [f"{dialect}-{route.method}{route.path}" for _, dialect, route, _ in CASES]


def decode(protocol: str, table: Any, route: Route, body: Any) -> Any:
    path = {"model": "m", "name": "m", "served": "m", "version": "1"}
    codec = ADAPTERS[protocol].server(table)
    request: Any = codec.decode(route, json.dumps(body).encode(), Call("r", CATALOG, path, entries=()))
    # Relayed as it is, or read for a model here.
    if not isinstance(request, Relay):
        return request
    return codec.read_by_text(request) if request.by_text else codec.read_score(request)


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all objects within a value."""
    if isinstance(value, dict):
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from objects(inner, (*path, key))


def with_field(body: Any, path: tuple[Any, ...], name: str) -> Any:
    changed = inner = copy.deepcopy(body)
    for key in path:
        inner = inner[key]
    inner[name] = 1
    return changed


def is_free(path: tuple[Any, ...]) -> bool:
    """Whether an object holds the client's own members: a JSON schema, or request parameters by name."""
    return bool({"schema", "parameters", "input_schema", "value"} & set(path)) and path != ("parameters",)


@pytest.mark.parametrize(("protocol", "dialect", "route", "body"), CASES, ids=IDS)
def test_a_foreign_field_anywhere_is_refused_or_named(
    protocol: str, dialect: str, route: Route, body: dict[str, Any]
) -> None:
    table = ADAPTERS[protocol].dialects[dialect]
    assert decode(protocol, table, route, body).unknown == ()
    strict = with_options(table, {"strict": True})
    decode(protocol, strict, route, body)
    for path in objects(body):
        if is_free(path):
            continue
        changed = with_field(body, path, FOREIGN)
        try:
            unknown = decode(protocol, table, route, changed).unknown
        except RequestError:
            continue
        assert [name.rpartition(".")[2] for name in unknown] == [FOREIGN], path
        with pytest.raises(RequestError, match=FOREIGN):
            decode(protocol, strict, route, changed)


def test_bodies_that_ask_no_model_refuse_foreign_fields() -> None:
    bodies = {
        route.body
        for adapter in ADAPTERS.values()
        for table in adapter.dialects.values()
        for route in adapter.server(table).routes
        if route.kind in ("object", "store") and route.body is not None
    } - {FileUpload}  # a form
    assert len(bodies) >= 5
    assert {body.__name__ for body in bodies if not body.__struct_config__.forbid_unknown_fields} == set()


KNOWN = {
    "store": {"store": True},
    "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
    "response_format.json_schema.description": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": SCHEMA}}
    },
    "guided_whitespace_pattern": {"guided_whitespace_pattern": " "},
    "structured_outputs.whitespace_pattern": {"structured_outputs": {"whitespace_pattern": " "}},
    "structured_outputs.disable_any_whitespace": {"structured_outputs": {"disable_any_whitespace": True}},
    "structured_outputs.disable_additional_properties": {"structured_outputs": {"disable_additional_properties": True}},
    "priority": {"priority": 3},
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_field_of_openais_clients_without_effect_is_named(name: str) -> None:
    table = ADAPTERS["openai"].dialects["openai"]
    routes = {route.path: route for route in ADAPTERS["openai"].server(table).routes if route.method == "POST"}
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    found = decode("openai", table, routes["/v1/chat/completions"], chat | KNOWN[name])
    assert found.unknown == (name,)
    if name != "store":
        found = decode("openai", table, routes["/v1/completions"], {"model": "m", "prompt": "x"} | KNOWN[name])
        assert found.unknown == (name,)


RESPONSE_KNOWN = {
    "include": {"include": ["reasoning.encrypted_content"]},
    "reasoning.summary": {"reasoning": {"summary": "auto"}},
    "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
    "text.format.description": {
        "text": {"format": {"type": "json_schema", "name": "n", "description": "d", "schema": SCHEMA}}
    },
}


@pytest.mark.parametrize("name", RESPONSE_KNOWN)
def test_a_known_field_of_responses_without_effect_is_named(name: str) -> None:
    table = ADAPTERS["openai"].dialects["openai"]
    routes = {route.path: route for route in ADAPTERS["openai"].server(table).routes}
    found = decode("openai", table, routes["/v1/responses"], {"model": "m", "input": "x"} | RESPONSE_KNOWN[name])
    assert found.unknown == (name,)


@pytest.mark.slow
@given(st.sampled_from(CASES), st.text(min_size=1, max_size=20).map(lambda name: f"zz{name}"))
@settings(max_examples=150)
def test_a_field_of_any_name_is_refused_or_named(case: Any, name: str) -> None:
    protocol, dialect, route, body = case
    try:
        unknown = decode(protocol, ADAPTERS[protocol].dialects[dialect], route, body | {name: 1}).unknown
    except RequestError:
        return
    assert name in unknown
    ((header, value),) = ignored_header(unknown)
    assert header == IGNORED
    assert value.isascii()
    assert value.isprintable()


def structs_of(info: inspect.Type, seen: set[type]) -> set[type]:
    if isinstance(info, inspect.StructType) and info.cls not in seen:
        seen.add(info.cls)
        for each in info.fields:
            structs_of(each.type, seen)
    for inner in (*getattr(info, "types", ()), getattr(info, "item_type", None), getattr(info, "type", None)):
        if inner is not None:
            structs_of(inner, seen)
    return seen


def structs_in(value: Any) -> set[type]:
    if isinstance(value, msgspec.Struct):
        fields = (getattr(value, name) for name in value.__struct_fields__)
        return {type(value)}.union(*map(structs_in, fields))
    return set().union(*map(structs_in, value)) if isinstance(value, tuple) else set()


WIRE = {f"{name} {route.path} {route.body.__name__}": (route, body) for name, _, route, body in CASES}


@pytest.mark.parametrize("name", WIRE)
def test_the_bodies_above_have_every_struct(name: str) -> None:
    route, body = WIRE[name]
    type = route.body
    if type.__module__ == "schemas.triton" and type.__name__ == "GenerateRequest":
        return  # read as ordered pairs
    of_other_dialects = {"InputPart"}  # MindIE's list of parts, in test_mindie_parts
    if route.kind == "embed":  # which refuses the other parts of a content
        of_other_dialects |= {"Blob", "FileData", "FunctionCall", "FunctionResponse"}
    whole = BODIES.get(type.__name__, body) if not name.startswith(tuple(OF_ROUTES)) else body
    found = structs_in(msgspec.convert(whole, type))
    missing = {each.__name__ for each in structs_of(inspect.type_info(type), set()) - found}
    assert missing - of_other_dialects == set()


@pytest.mark.parametrize("name", ADAPTERS["triton"].dialects)
def test_a_foreign_field_of_the_repository_index_is_named_or_refused(name: str) -> None:
    """The one body of a route that runs nothing."""
    adapter = ADAPTERS["triton"]
    table = adapter.dialects[name]
    (route,) = (route for route in adapter.server(table).routes if route.name == "index")
    call, body = Call("r", CATALOG), json.dumps({"ready": True, FOREIGN: 1}).encode()
    assert adapter.server(table).describe(route, call, b'{"ready": true}').headers == ()
    assert adapter.server(table).describe(route, call, body).headers == ignored_header((FOREIGN,))
    with pytest.raises(RequestError, match=FOREIGN):
        adapter.server(with_options(table, {"strict": True})).describe(route, call, body)


def test_mindie_parts() -> None:
    body = {"inputs": [{"type": "text", "text": "x", FOREIGN: 1}]}
    (route,) = (route for _, dialect, route, _ in CASES if dialect == "mindie" and route.name == "generate")
    unknown = decode("tgi", ADAPTERS["tgi"].dialects["mindie"], route, body).unknown
    assert unknown == (f"inputs[0].{FOREIGN}",)


class Leaf(msgspec.Struct, frozen=True):
    name: str = msgspec.field(default="", name="in-wire")
    free: dict[str, Any] = {}


class Tree(msgspec.Struct, frozen=True):
    leaves: tuple[Leaf, ...] | str | None = None
    tree: Tree | None = None


def test_paths() -> None:
    body = {
        "leaves": [{"in-wire": "x", "name": 1}, {"name": 2, "free": {"name": 3}}],
        "tree": {"x": 1, "tree": {"y": 2}},
    }
    assert find_unknown(body, Tree) == ("leaves[0].name", "tree.x", "tree.tree.y")


@pytest.mark.parametrize("value", [None, [], {}])
def test_null_and_empty_fields_are_absent(value: Any) -> None:
    assert find_unknown({"x": value}, Tree) == ()


def test_the_header_is_bounded() -> None:
    assert ignored_header(()) == ()
    assert ignored_header(("temprature", "messages[0].nmae")) == ((IGNORED, "temprature, messages[0].nmae"),)
    ((_, value),) = ignored_header(tuple(f"é\r\n{number}" * 100 for number in range(60)))
    assert value.endswith(", ... 44 more")
    assert len(value) < 16 * 64 * 7
