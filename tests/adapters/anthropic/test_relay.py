"""Bodies, events and answers between a client and a remote of the protocol pass with all their fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.anthropic import ADAPTER
from adapters.base import Call, Reply
from adapters.fold import fold
from schemas.catalog import Catalog
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Stopping,
    ToolDelta,
)

SERVER = ADAPTER.server(ADAPTER.dialects["anthropic"])
CLIENT = ADAPTER.client(ADAPTER.dialects["anthropic"])
CACHED = {"type": "ephemeral"}
BODY = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "a", "cache_control": CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}, "citations": {}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]},
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": CACHED}]},
    ],
    "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "output_config": {"effort": "low"},
    "stream": True,
}

# Written after the API reference's pages "Streaming messages", "Citations" and "Web search tool".
EVENTS: list[dict[str, Any]] = [
    {"type": "ping"},
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "far",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "container": None,
            "usage": {
                "input_tokens": 25,
                "cache_creation": {"ephemeral_5m_input_tokens": 3},
                "service_tier": "standard",
            },
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "input_json_delta", "partial_json": '{"query":"x"}'},
    },
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {
            "type": "code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "code_execution_result", "stdout": "5", "return_code": 0, "content": []},
        },
    },
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": {"type": "text", "text": "", "citations": []}},
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}},
    },
    {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "Hé\u2028."}},
    {"type": "content_block_stop", "index": 3},
    {"type": "content_block_start", "index": 4, "content_block": {"type": "compaction", "content": None}},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "compaction_delta", "content": "Short."}},
    {"type": "content_block_stop", "index": 4},
    {
        "type": "content_block_start",
        "index": 5,
        "content_block": {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "f",
            "input": {"a": "b"},
            "caller": {"type": "x"},
        },
    },
    {"type": "content_block_stop", "index": 5},
    {
        "type": "content_block_start",
        "index": 6,
        "content_block": {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    },
    {"type": "content_block_delta", "index": 6, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_stop", "index": 6},
    {"type": "some_new_event", "x": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None, "container": {"id": "c"}},
        "usage": {"output_tokens": 15, "server_tool_use": {"web_search_requests": 1}},
    },
    {"type": "message_stop"},
]


def stream(events: list[dict[str, Any]] = EVENTS) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event, ensure_ascii=False).encode())
        for event in events
    )


def relayed_request(body: dict[str, Any] = BODY, headers: dict[str, str] | None = None) -> Generate:
    [route] = [route for route in SERVER.routes if route.name == "messages"]
    request = SERVER.decode(route, json.dumps(body).encode(), Call("r1", Catalog({}), headers=headers or {}))
    assert isinstance(request, Generate)
    return request


def other(**fields: Any) -> Generate:
    return Generate(id="r1", model="m", prompts=(ChatPrompt((Message("user", "x"),)),), **fields)


def read(request: Generate, data: bytes, size: int) -> list[Events]:
    """The batches of a stream that arrives in pieces of `size` bytes."""
    reader = CLIENT.decoder(request)
    batches = [reader.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return [batch for batch in (*batches, reader.close()) if batch]


def test_a_body_passes_but_for_the_models_name() -> None:
    request = relayed_request(headers={"anthropic-beta": "context-management-2025-06-27", "x-api-key": "secret"})
    sent = CLIENT.encode(request)
    assert json.loads(sent.body) == BODY
    assert dict(sent.headers) == {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "context-management-2025-06-27",
    }
    version = CLIENT.encode(relayed_request(headers={"anthropic-version": "2024-01-01"})).headers
    assert dict(version)["anthropic-version"] == "2024-01-01"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_every_event_passes(size: int) -> None:
    request = relayed_request()
    encoder = SERVER.encoder(request)
    written = b"".join(map(encoder.feed, read(request, stream(), size)))
    frames = [frame.split("\n") for frame in written.decode().strip().split("\n\n")]
    assert [json.loads(data.removeprefix("data: ")) for _, data in frames] == EVENTS
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in EVENTS]


def test_a_stream_without_its_last_event_is_ended() -> None:
    request = relayed_request()
    encoder = SERVER.encoder(request)
    written = b"".join(map(encoder.feed, read(request, stream(EVENTS[:-1]), 1 << 20)))
    assert written.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_an_answer_passes() -> None:
    message = EVENTS[1]["message"] | {
        "content": [event["content_block"] for event in EVENTS if event["type"] == "content_block_start"],
        "stop_reason": "tool_use",
    }
    body = json.dumps(message).encode()
    request = relayed_request(BODY | {"stream": False})
    assert SERVER.encode(request, fold(CLIENT.decode(request, Reply(body)))).body == body
    # For other clients, what the IR has.
    [choice] = fold(CLIENT.decode(other(), Reply(body))).choices
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [("f", '{"a":"b"}'), ("g", "{}")]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_other_clients_get_what_the_ir_has(size: int) -> None:
    batches = read(other(stream=True), stream(), size)
    answer = fold(tuple(event for batch in batches for event in batch))
    [choice] = answer.choices
    assert (choice.reasoning, choice.text, choice.reason) == ("Hm.", "Hé\u2028.", FinishReason.TOOL_CALL)
    assert [(call.id, call.arguments) for call in choice.tool_calls] == [("toolu_1", '{"a":"b"}'), ("toolu_2", "{}")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (25, 15)
    assert answer.relayed is None


def test_streamed_arguments_replace_those_of_the_start() -> None:
    start: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    events = [
        EVENTS[1],
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":2}'}},
        *EVENTS[-2:],
    ]
    read_events = [event for batch in read(other(stream=True), stream(events), 1 << 20) for event in batch]
    pieces = [piece for event in read_events if isinstance(event, Delta) for piece in event.tool_calls]
    assert pieces == [ToolDelta(0, "t", "f"), ToolDelta(0, arguments='{"a":2}')]


def test_a_stop_sequence_is_put_back() -> None:
    body = {"model": "m", "content": [], "stop_reason": "stop_sequence", "stop_sequence": "END"}
    asked = other(stopping=Stopping(stop=("END",), include_stop=True))
    *_, finished, _ = CLIENT.decode(asked, Reply(json.dumps(body).encode()))
    assert isinstance(finished, Finished)
    assert finished.text == "END"


def test_what_the_protocol_has_a_field_for_is_sent() -> None:
    schema = {"type": "object", "properties": {}}
    prompt = ChatPrompt((Message("user", "x"), Message("assistant", "5", reasoning="Hm."), Message("user", "y")))
    request = Generate(id="r", model="m", prompts=(prompt,), grammar=Grammar("json_schema", schema))
    sent = json.loads(CLIENT.encode(request).body)
    closed = schema | {"additionalProperties": False}
    assert sent["output_config"] == {"format": {"type": "json_schema", "schema": closed}}
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "<thinking>\nHm.\n</thinking>"},
        {"type": "text", "text": "5"},
    ]
