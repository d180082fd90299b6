"""Words, tools and parts that are not known here: a server of the dialect gets them, all others refuse them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.base import Reply
from adapters.databricks import ADAPTER as DATABRICKS
from adapters.fold import fold
from adapters.openai import ADAPTER
from backends.base import check_unread, ignored_fields
from backends.scripted import ScriptedBackend
from schemas.errors import InvalidRequest
from schemas.ir import Generate, Tokenize
from tests.adapters.openai.scenes import ROUTES, call

DIALECT = ADAPTER.dialects["openai"]
SERVER, CLIENT = ADAPTER.server(DIALECT), ADAPTER.client(DIALECT)
HI = [{"role": "user", "content": "Hi"}]
CUSTOM = {"type": "custom", "custom": {"name": "code"}}
CALLED = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "code", "input": "1"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
]
SPOKEN = [*HI, {"role": "assistant", "audio": {"id": "a1"}}, *HI]


def ask(name: str = "chat", **fields: Any) -> Any:
    body = {"model": "m"} | ({"messages": HI} if name == "chat" else {"input": "Hi"}) | fields
    return SERVER.decode(ROUTES[name], json.dumps(body).encode(), call())


def refusal(request: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        ignored_fields(request, ScriptedBackend("s"))
    return raised.value


@pytest.mark.parametrize(
    ("name", "fields", "param", "words"),
    [
        (
            "chat",
            {"reasoning_effort": "lots"},
            "reasoning_effort",
            "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'",
        ),
        ("chat", {"verbosity": "lots"}, "verbosity", "'low', 'medium', and 'high'"),
        (
            "chat",
            {"service_tier": "lots"},
            "service_tier",
            "'auto', 'default', 'flex', 'scale', 'priority', and 'fast'",
        ),
        (
            "chat",
            {"prompt_cache_retention": "lots"},
            "prompt_cache_retention",
            "'in_memory', 'in-memory', and '24h'",
        ),
        ("chat", {"modalities": ["text", "lots"]}, "modalities[1]", "'text' and 'audio'"),
        ("chat", {"tool_choice": "lots"}, "tool_choice", "'none', 'auto', and 'required'"),
        (
            "chat",
            {"response_format": {"type": "lots"}},
            "response_format.type",
            "'text', 'json_object', and 'json_schema'",
        ),
        ("responses", {"text": {"verbosity": "lots"}}, "text.verbosity", "'low', 'medium', and 'high'"),
        (
            "responses",
            {"reasoning": {"effort": "lots"}},
            "reasoning.effort",
            "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'",
        ),
        (
            "responses",
            {"service_tier": "lots"},
            "service_tier",
            "'auto', 'default', 'flex', 'scale', 'priority', and 'fast'",
        ),
    ],
)
def test_an_unknown_word(name: str, fields: dict[str, Any], param: str, words: str) -> None:
    request = ask(name, **fields)
    error = refusal(request)
    assert (error.message, error.param) == (f"Invalid value: 'lots'. Supported values are: {words}.", param)
    assert json.loads(SERVER.error(error, request).body)["error"]["code"] == "invalid_value"
    assert CLIENT.ignored(request) == ()
    assert b'"lots"' in CLIENT.encode(request).body


def test_a_tool_is_no_word_that_another_dialect_is_sent() -> None:
    databricks = DATABRICKS.client(DATABRICKS.dialects["databricks"])
    assert "tools[0].type" in databricks.ignored(ask(tools=[CUSTOM]))


def test_a_response_that_is_counted_has_known_words() -> None:
    request = ask("input_tokens", reasoning={"effort": "lots"})
    assert isinstance(request, Tokenize)
    with pytest.raises(InvalidRequest, match="Supported values are"):
        check_unread(request, [part.param for part in request.unread])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"summary": "lots"}}, "reasoning.summary"),
        ({"include": ["reasoning.encrypted_content", "lots"]}, "include[1]"),
        ({"truncation": "lots"}, "truncation"),
    ],
)
def test_words_that_no_other_server_is_sent(fields: dict[str, Any], param: str) -> None:
    request = ask("responses", **fields)
    error = refusal(request)
    assert "Supported values are" in error.message
    assert (error.param, error.code) == (param, "invalid_value")
    assert param in CLIENT.ignored(request)


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ({str(key): "x" for key in range(17)}, "metadata", "object_above_max_properties"),
        ({"a": "x" * 513}, "metadata.a", "string_above_max_length"),
        ({"k" * 65: "x"}, f"metadata.{'k' * 64}", "string_above_max_length"),
    ],
)
def test_metadata_of_what_may_be_stored_is_bounded(metadata: dict[str, str], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("responses", metadata=metadata)
    assert (raised.value.param, raised.value.code) == (param, code)
    batch = {"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    with pytest.raises(InvalidRequest) as raised:
        SERVER.batches.read_batch(json.dumps(batch | {"metadata": metadata}).encode())
    assert (raised.value.param, raised.value.code) == (param, code)
    # A label of a chat that nothing stores.
    assert ask(metadata=metadata).hints["metadata"] == metadata


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [CUSTOM]}, "tools[0].type"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "code"}}}, "tools[0].type"),
        ({"messages": CALLED}, "messages[1].tool_calls[0].type"),
        ({"messages": SPOKEN}, "messages[1].audio"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"mode": "score"}}, "moderation"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"echo": True}, "echo"),
    ],
)
def test_what_only_a_server_of_the_dialect_can_do(fields: dict[str, Any], param: str) -> None:
    request = ask(**fields)
    assert refusal(request).param == param
    sent = json.loads(CLIENT.encode(request).body)
    assert {name: sent[name] for name in fields} == fields


def test_a_call_of_a_custom_tool_is_relayed() -> None:
    request = ask(tools=[CUSTOM])
    assert isinstance(request, Generate)
    called = {"id": "c1", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [called]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    body = json.dumps({"id": "x", "model": "far", "choices": [choice]}).encode()
    assert SERVER.encode(request, fold(CLIENT.decode(request, Reply(body)))).body == body


def test_a_streamed_call_of_a_custom_tool_is_relayed() -> None:
    request = ask(tools=[CUSTOM], stream=True)
    pieces = [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "code", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "print(1)"}}]},
        {},
    ]
    chunks = [
        {"id": "x", "model": "far", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in zip(pieces, (None, None, "tool_calls"), strict=True)
    ]
    data = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
    reader, writer = CLIENT.decoder(request), SERVER.encoder(request)
    assert writer.feed(reader.feed(data) + reader.close()) == data


@pytest.mark.parametrize(("stream", "is_stored"), [(False, True), (True, False)])
def test_only_a_whole_answer_that_is_not_read_is_stored(stream: bool, is_stored: bool) -> None:
    body = json.dumps({"model": "m", "messages": HI, "tools": [CUSTOM], "store": True, "stream": stream}).encode()
    request: Any = SERVER.decode(ROUTES["chat"], body, replace(call(), keeps=True))
    assert (request.stored_items is not None) is is_stored


def test_spoken_answers_are_relayed() -> None:
    request = ask(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
    spoken = {"id": "a1", "data": "AAAA", "expires_at": 1, "transcript": "Hello"}
    message = {"role": "assistant", "content": None, "refusal": None, "audio": spoken}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({"id": "x", "model": "far", "choices": [choice]}).encode()
    assert SERVER.encode(request, fold(CLIENT.decode(request, Reply(body)))).body == body
