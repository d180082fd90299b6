"""Refusals with their exact words, and the values at the ends of the intervals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.base import ignored_fields
from backends.scripted import ScriptedBackend
from schemas.errors import InvalidRequest, MalformedBody, UnsupportedFeature
from schemas.ir import Generate
from tests.adapters.openai.scenes import HELLO, ROUTES, call, chat, completion, embed, server

U64 = 2**64
DECIMAL_HIGH = "Invalid '{}': decimal above maximum value. Expected a value <= {}, but got {} instead."
DECIMAL_LOW = "Invalid '{}': decimal below minimum value. Expected a value >= {}, but got {} instead."
DECIMAL_OPEN = "Invalid '{}': decimal below minimum value. Expected a value > {}, but got {} instead."
INTEGER_HIGH = "Invalid '{}': integer above maximum value. Expected a value <= {}, but got {} instead."
INTEGER_LOW = "Invalid '{}': integer below minimum value. Expected a value >= {}, but got {} instead."


def refusal(ask: Any, *args: Any, **fields: Any) -> InvalidRequest:
    """The error of a request where no server of the client's dialect answers."""
    with pytest.raises(InvalidRequest) as caught:
        ignored_fields(ask(*args, **fields), ScriptedBackend("s"))
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "words", "bound", "shown", "code"),
    [
        ("temperature", 2.1, DECIMAL_HIGH, 2, 2.1, "decimal_above_max_value"),
        ("temperature", 3, DECIMAL_HIGH, 2, 3, "decimal_above_max_value"),
        ("temperature", -0.1, DECIMAL_LOW, 0, -0.1, "decimal_below_min_value"),
        ("top_p", 1.5, DECIMAL_HIGH, 1, 1.5, "decimal_above_max_value"),
        ("top_p", -1, DECIMAL_LOW, 0, -1, "decimal_below_min_value"),
        ("presence_penalty", 2.5, DECIMAL_HIGH, 2, 2.5, "decimal_above_max_value"),
        ("frequency_penalty", -2.5, DECIMAL_LOW, -2, -2.5, "decimal_below_min_value"),
        ("n", 0, INTEGER_LOW, 1, 0, "integer_below_min_value"),
        ("n", 129, INTEGER_HIGH, 128, 129, "integer_above_max_value"),
        ("max_tokens", 0, INTEGER_LOW, 1, 0, "integer_below_min_value"),
        ("seed", 2**63, INTEGER_HIGH, 2**63 - 1, 2**63, "integer_above_max_value"),
        ("repetition_penalty", 0, DECIMAL_OPEN, 0, 0, "decimal_below_min_value"),
        ("typical_p", 0, DECIMAL_OPEN, 0, 0, "decimal_below_min_value"),
        ("min_p", 1.1, DECIMAL_HIGH, 1, 1.1, "decimal_above_max_value"),
        ("top_k", -2, INTEGER_LOW, -1, -2, "integer_below_min_value"),
        ("min_tokens", -1, INTEGER_LOW, 0, -1, "integer_below_min_value"),
        ("truncate_prompt_tokens", 0, INTEGER_LOW, 1, 0, "integer_below_min_value"),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_bounds(ask: Any, field: str, value: Any, words: str, bound: Any, shown: Any, code: str) -> None:
    error = refusal(ask, **{field: value})
    assert error.message == words.format(field, bound, shown)
    assert (error.param, error.code) == (field, code)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, None) for field in ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "max_tokens")),
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 0),
        ("top_p", 1),
        ("n", 1),
        ("n", 128),
        ("max_tokens", 1),
        ("seed", 2**63 - 1),
        ("seed", -(2**63)),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("stop", []),
        ("stop", ["a", "b", "c", "d"]),
        ("logit_bias", {"0": -100, "50256": 100}),
        ("top_k", -1),
        ("top_k", 0),
        ("unheard_of", {"any": "thing"}),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_the_ends_of_intervals_are_accepted(ask: Any, field: str, value: Any) -> None:
    ask(**{field: value})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"stop": ["a"] * 5},
            "stop",
            "Invalid 'stop': array too long. Expected an array with maximum length 4, "
            "but got an array with length 5 instead.",
        ),
        ({"stop": ""}, "stop", "Invalid 'stop': empty string. Expected a string with minimum length 1."),
        ({"stop": ["a", ""]}, "stop", "Invalid 'stop': empty string. Expected a string with minimum length 1."),
        ({"logit_bias": {"hi": 1}}, "logit_bias", "Invalid key in 'logit_bias': 'hi'. Expected a token id."),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "Invalid key in 'logit_bias': '-1'. Expected a token id."),
        ({"logit_bias": {"1": 101}}, "logit_bias", "Invalid 'logit_bias': 101 is not between -100 and 100."),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        ),
        ({"model": None}, "model", "Missing required parameter: 'model'."),
        (
            {"temperature": "hot"},
            "temperature",
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
        ({"n": 1.5}, "n", "Invalid type for 'n': expected an integer, but got a decimal instead."),
        ({"stream": "yes"}, "stream", "Invalid type for 'stream': expected a boolean, but got a string instead."),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_refusals(ask: Any, fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(ask, **fields)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"top_logprobs": 21, "logprobs": True},
            "top_logprobs",
            INTEGER_HIGH.format("top_logprobs", 20, 21),
        ),
        (
            {"top_logprobs": 2},
            "top_logprobs",
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens", INTEGER_LOW.format("max_completion_tokens", 1, 0)),
        (
            {"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]},
            "functions",
            "'functions' and 'function_call' cannot be combined with 'tools' or 'tool_choice'.",
        ),
        (
            {"function_call": "auto"},
            "function_call",
            "'function_call' is only allowed when 'functions' are specified.",
        ),
        ({"audio": {"voice": "alloy"}}, "audio", "The 'audio' parameter is not supported: answers are text."),
        ({"modalities": ["text", "audio"]}, "modalities", "Only the modality 'text' is supported."),
        ({"web_search_options": {}}, "web_search_options", "The 'web_search_options' parameter is not supported."),
        ({"moderation": {}}, "moderation", "The 'moderation' parameter is not supported."),
        (
            {"chat_template": "{{ x }}"},
            "chat_template",
            "The 'chat_template' parameter is not supported: a model's own template is used.",
        ),
        ({"echo": True}, "echo", "The 'echo' parameter is not supported in chats."),
        ({"tool_choice": "required"}, "tool_choice", "'tool_choice' is only allowed when 'tools' are specified."),
        (
            {"tool_choice": "any"},
            "tool_choice",
            "Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "Missing required parameter: 'response_format.json_schema'.",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "Missing required parameter: 'response_format.json_schema.name'.",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "Missing required parameter: 'response_format.json_schema.schema'.",
        ),
    ],
)
def test_refusals_of_chats(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(chat, **fields)
    assert (error.param, error.message) == (param, message)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"tools": [TOOL] * 129},
            "tools",
            "Invalid 'tools': array too long. Expected an array with maximum length 128, "
            "but got an array with length 129 instead.",
        ),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
            "tools[0].type",
            "Tools of type 'custom' are not supported. Supported types are: 'function'.",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "Missing required parameter: 'tools[0].function'."),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "Tool choice 'g' not found in 'tools' parameter.",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice.function",
            "Missing required parameter: 'tool_choice.function'.",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
            "Missing required parameter: 'tool_choice.allowed_tools'.",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "custom"}},
            "tool_choice.type",
            "Invalid value: 'custom'. Supported values are: 'function' and 'allowed_tools'.",
        ),
    ],
)
def test_refusals_of_tools(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(chat, **fields)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        (
            [],
            "messages",
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        ),
        (
            [{"role": "robot", "content": "a"}],
            "messages[0].role",
            "Invalid value: 'robot'. Supported values are: 'developer', 'system', 'user', 'assistant', 'tool', "
            "and 'function'.",
        ),
        (
            [*HELLO, {"role": "user"}],
            "messages[1].content",
            "Invalid type for 'messages[1].content': expected one of a string or array of objects, "
            "but got null instead.",
        ),
        (
            [{"role": "assistant"}],
            "messages[0].content",
            "Invalid type for 'messages[0].content': expected one of a string or array of objects, "
            "but got null instead.",
        ),
        (
            [{"role": "user", "content": []}],
            "messages[0].content",
            "Invalid 'messages[0].content': empty array. "
            "Expected an array with minimum length 1, but got an empty array instead.",
        ),
        (
            [{"role": "tool", "content": "4"}],
            "messages[0].tool_call_id",
            "Missing required parameter: 'messages[0].tool_call_id'.",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "Missing required parameter: 'messages[0].content[0].text'.",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].image_url",
            "Missing required parameter: 'messages[0].content[0].image_url'.",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "type": "x", "function": {"name": "f", "arguments": ""}}],
                }
            ],
            "messages[0].tool_calls[0].type",
            "Invalid value: 'x'. Supported values are: 'function'.",
        ),
    ],
)
def test_refusals_of_messages(messages: list[Any], param: str, message: str) -> None:
    error = refusal(chat, messages=messages)
    assert (error.param, error.message) == (param, message)


def test_audio_is_unsupported() -> None:
    sound = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]}]
    request = chat(messages=sound)
    # Only a backend that is not sent the body refuses it.
    with pytest.raises(UnsupportedFeature) as caught:
        ignored_fields(request, ScriptedBackend("s"))
    assert (caught.value.param, caught.value.feature) == ("messages[0].content[1].type", "input_audio")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logprobs": 6}, "logprobs", INTEGER_HIGH.format("logprobs", 5, 6)),
        ({"logprobs": -1}, "logprobs", INTEGER_LOW.format("logprobs", 0, -1)),
        ({"best_of": 21}, "best_of", INTEGER_HIGH.format("best_of", 20, 21)),
        ({"best_of": 2, "n": 3}, "best_of", "'best_of' (2) must be greater than or equal to 'n' (3)."),
        (
            {"best_of": 2, "stream": True},
            "best_of",
            "The 'best_of' parameter is only allowed when 'stream' is not enabled.",
        ),
        ({"prompt": ["a", 1]}, "prompt", "Invalid 'prompt': texts, token ids and lists of token ids cannot be mixed."),
        ({"prompt": [-1]}, "prompt", "Invalid 'prompt': token ids must be between 0 and 2147483647."),
        ({"prompt": [[2**31]]}, "prompt", "Invalid 'prompt': token ids must be between 0 and 2147483647."),
        (
            {"prompt": [[]]},
            "prompt",
            "Invalid 'prompt': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        ),
        (
            {"prompt": []},
            "prompt",
            "Invalid 'prompt': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        ),
    ],
)
def test_refusals_of_completions(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(completion, **fields)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"model": None}, "model"),
    ],
)
def test_refusals_of_embeddings(fields: dict[str, Any], param: str) -> None:
    assert refusal(embed, **fields).param == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"\xff", b'{"model":"\\ud800"}', b"[" * 100_000])
def test_bodies_that_are_no_json_object_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        server().decode(ROUTES["chat"], body, call())


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        server().decode(ROUTES["chat"], b'{"model":"m"}', call())
    assert (caught.value.message, caught.value.param) == ("Missing required parameter: 'messages'.", "messages")


def test_unknown_fields_are_kept_or_refused() -> None:
    assert chat(max_retries=0, top_a=1).extra == {"max_retries": 0, "top_a": 1}
    error = refusal(chat, options={"strict": True}, max_retries=0)
    assert (error.message, error.param) == ("Unrecognized request argument supplied: max_retries", "max_retries")


def test_stream_options_where_they_need_no_stream() -> None:
    assert chat(options={"stream_options_need_stream": False}, stream_options={"include_usage": True}).stream_usage


def test_the_body_is_kept_in_the_origin() -> None:
    body = json.dumps({"model": "chat", "messages": HELLO}).encode()
    request = server().decode(ROUTES["chat"], body, call())
    assert isinstance(request, Generate)
    assert request.origin is not None
    assert (request.origin.protocol, request.origin.dialect, request.origin.operation) == ("openai", "openai", "chat")
    assert request.origin.body == body


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"messages": [{"content": "Hi"}]}, "messages[0].role"), ({"response_format": {}}, "response_format.type")],
)
def test_a_missing_field_has_its_code_wherever_it_is(fields: dict[str, Any], param: str) -> None:
    refused = refusal(chat, **fields)
    assert (refused.param, refused.code) == (param, "missing_required_parameter")
