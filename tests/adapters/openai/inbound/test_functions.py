"""The deprecated form of tools: read as tools, and answered in the form in which it was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Message, Tool, ToolCall, ToolChoice
from tests.adapters.databricks.scenes import chat as databricks_chat
from tests.adapters.openai.scenes import CALLS, chat, said, server

FUNCTIONS = [{"name": "get_weather", "description": "d", "parameters": {"type": "object"}}]
HISTORY = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
    {"role": "function", "name": "get_weather", "content": "sunny"},
]


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        ({}, None),
        ({"function_call": "auto"}, ToolChoice("auto")),
        ({"function_call": "none"}, ToolChoice("none")),
        ({"function_call": {"name": "get_weather"}}, ToolChoice("named", ("get_weather",))),
    ],
)
def test_functions_are_tools(asked: dict[str, Any], choice: ToolChoice | None) -> None:
    request = chat(functions=FUNCTIONS, **asked)
    assert request.tools == (Tool("get_weather", "d", {"type": "object"}),)
    assert (request.tool_choice, request.parallel_tool_calls, request.legacy_functions) == (choice, False, True)


def test_calls_and_results_in_messages() -> None:
    (prompt,) = chat(messages=HISTORY).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1:] == (
        Message("assistant", None, tool_calls=(ToolCall("call_1", "get_weather", "{}"),)),
        Message("tool", "sunny", "get_weather", tool_call_id="call_1"),
    )
    # Tools may follow such a history: only the request's own functions decide the form of the answer.
    assert not chat(messages=HISTORY).legacy_functions


def test_a_whole_answer_has_the_form_of_the_request() -> None:
    choice = json.loads(server().encode(chat(functions=FUNCTIONS), fold(CALLS)).body)["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert "tool_calls" not in choice["message"]
    plain = json.loads(server().encode(chat(functions=FUNCTIONS), fold(said("Hi"))).body)["choices"][0]
    assert (plain["finish_reason"], "function_call" in plain["message"]) == ("stop", False)


def test_a_streamed_answer_has_the_form_of_the_request() -> None:
    data = server().encoder(chat(functions=FUNCTIONS, stream=True)).feed(CALLS).decode()
    choices = [json.loads(line[6:])["choices"][0] for line in data.splitlines() if line.startswith("data: {")]
    opening = {"role": "assistant", "content": None, "refusal": None}
    assert [choice["delta"] for choice in choices] == [
        opening | {"function_call": {"name": "get_weather", "arguments": ""}},
        {"function_call": {"arguments": '{"city":'}},
        {"function_call": {"arguments": '"Paris"}'}},
        {},
    ]
    assert choices[-1]["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": []}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "other"}}, "function_call"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat(**fields)
    assert error.value.param == param


def test_databricks_never_had_functions() -> None:
    with pytest.raises(UnsupportedFeature, match="Use 'tools' instead"):
        databricks_chat(functions=FUNCTIONS)
