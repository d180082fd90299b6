"""The Responses API: what is read, what is written, whole and as typed events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import BackendFailed, InvalidRequest, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Started,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
    Usage,
)

from .scenes import ROUTES, call, server

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
SAID: Events = (
    Started("m", 9),
    Delta(reasoning="Hm."),
    Delta(text="Hel"),
    Delta(text="lo\u2028"),
    Delta(tool_calls=(ToolDelta(0, "call_1", "f"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"a":'),)),
    Delta(tool_calls=(ToolDelta(0, arguments="1}"),)),
    Delta(tool_calls=(ToolDelta(1, "call_2", "g", "{}"),)),
    Finished(reason=FinishReason.TOOL_CALL, generated=20),
    Usage(9, 20, cached_tokens=4, reasoning_tokens=3),
)


def ask(**fields: Any) -> Generate:
    body = {"model": "m", "input": "Hi"} | fields
    request = server().decode(ROUTES["responses"], json.dumps(body).encode(), call())
    assert isinstance(request, Generate)
    return request


def events(data: bytes) -> list[dict[str, Any]]:
    """The events, whose names are their types and whose numbers have no gap."""
    told = []
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(told)
        told.append(event)
    return told


def test_the_smallest_question() -> None:
    request = ask()
    assert request.prompts == (ChatPrompt((Message("user", "Hi"),)),)
    assert request.sampling == Sampling(do_sample=True)
    assert not request.stream


def test_every_parameter() -> None:
    request = ask(
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0,
        top_p=0.5,
        stream=True,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low"},
        metadata={"a": "b"},
        user="u1",
        store=False,
        new=1,
    )
    assert request.prompts == (ChatPrompt((Message("system", "Be brief."), Message("user", "Hi"))),)
    assert request.sampling == Sampling(do_sample=True, temperature=0, top_p=0.5)
    assert request.stopping.max_new_tokens == 7
    assert request.stream
    assert request.tools == (Tool("get_weather", None, {"type": "object"}, True),)
    assert request.tool_choice == ToolChoice("named", ("get_weather",))
    assert request.parallel_tool_calls is False
    assert request.grammar == Grammar("json_schema", {"type": "object"}, "n", True)
    assert request.hints == {"reasoning_effort": "low", "metadata": {"a": "b"}}
    assert (request.user, request.extra) == ("u1", {"new": 1})


def test_items() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What?"},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I ask.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "6"}]},
    ]
    assert ask(input=items).prompts[0] == ChatPrompt(
        (
            Message("developer", "Be kind."),
            Message("user", (TextPart("What?"), ImagePart("https://example.com/a.png", "url", "low"))),
            Message(
                "assistant",
                (TextPart("I ask."),),
                tool_calls=(ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{}")),
            ),
            Message("tool", "5", tool_call_id="c1"),
            Message("tool", (TextPart("6"),), tool_call_id="c2"),
        )
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ],
)
def test_refusals_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(**fields)
    assert raised.value.param == param


def test_a_whole_answer() -> None:
    request = ask(tools=[WEATHER], instructions="Be brief.", metadata={"a": "b"})
    said = json.loads(server().encode(request, fold(SAID)).body)
    assert said["id"] == f"resp_{request.id}"
    assert (said["status"], said["error"], said["incomplete_details"]) == ("completed", None, None)
    assert [item["type"] for item in said["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert said["output"][1]["content"] == [
        {"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello\u2028"}
    ]
    assert (said["output"][2]["call_id"], said["output"][2]["arguments"]) == ("call_1", '{"a":1}')
    assert said["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 29,
    }
    assert (said["tools"], said["instructions"], said["metadata"]) == ([WEATHER], "Be brief.", {"a": "b"})


def test_a_stream_folds_to_the_whole() -> None:
    request = ask(stream=True)
    writer = server().encoder(request)
    told = events(b"".join(writer.feed((event,)) for event in SAID))
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert told[-1]["response"] == json.loads(server().encode(request, fold(SAID)).body)
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert told[-1]["response"]["output"] == done
    places = [("rs", 0), ("msg", 1), ("msg", 1), ("fc", 2), ("fc", 2), ("fc", 3)]
    assert [event["item_id"] for event in told if event["type"].endswith(".delta")] == [
        f"{prefix}_{request.id}_{place}" for prefix, place in places
    ]
    assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == "Hello\u2028"


@pytest.mark.parametrize(
    ("reason", "why"), [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.CONTENT_FILTER, "content_filter")]
)
def test_what_is_cut_is_incomplete(reason: FinishReason, why: str) -> None:
    cut = (Started("m", 1), Delta(text="Hel"), Finished(reason=reason), Usage(1, 1))
    request = ask(stream=True)
    last = events(server().encoder(request).feed(cut))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": why}
    assert last["response"]["output"][-1]["status"] == "incomplete"
    assert last["response"] == json.loads(server().encode(request, fold(cut)).body)


def test_a_failed_stream_says_so() -> None:
    writer = server().encoder(ask(stream=True))
    data = writer.feed((Started("m", 1), Delta(text="Hel"))) + writer.fail(BackendFailed("Because."))
    last = events(data)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["message"] == "Because."


def test_log_probabilities_are_not_there_yet() -> None:
    with pytest.raises(UnsupportedFeature):
        ask(top_logprobs=3)
