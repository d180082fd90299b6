"""Tool calls of the bundled model: chosen by it, or enforced by a grammar."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from adapters.fold import fold
from backends.native.backend import NativeBackend
from schemas.completion import Choice
from schemas.errors import InvalidRequest
from schemas.ir import (
    ChatPrompt,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Stopping,
    Tool,
    ToolChoice,
)
from tests.backends import laws

pytestmark = pytest.mark.torch

WEATHER = Tool(
    "get_weather",
    "The weather.",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"city": {"type": "string", "maxLength": 20}},
    },
)
UNIT = Tool(
    "set_unit",
    parameters={"properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "additionalProperties": False},
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[NativeBackend]:
    options = {"engine": "inprocess", "threads": 1, "max_sequences": 8, "kv_tokens": 4096, "dtype": "float32"}
    backend = NativeBackend("native", options)
    await backend.start()
    yield backend
    await backend.aclose()


module_loop = pytest.mark.asyncio(loop_scope="module")


async def ask(backend: NativeBackend, text: str, **fields: Any) -> Choice:
    prompts = (ChatPrompt((Message("user", text),)),)
    fields = {"tools": (WEATHER, UNIT), "sampling": Sampling(temperature=0), "stopping": Stopping(200)} | fields
    asked = Generate(id="r", model="demo", prompts=prompts, **fields)
    return fold(await laws.collect(backend.generate(asked))).choices[0]


@module_loop
async def test_the_model_decides_to_call(backend: NativeBackend) -> None:
    choice = await ask(backend, "What is the weather in Paris?")
    (call,) = choice.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert (choice.text, choice.reason) == ("", FinishReason.TOOL_CALL)


@module_loop
async def test_the_model_may_answer_without_a_call(backend: NativeBackend) -> None:
    for choice in (None, ToolChoice("none")):
        answer = await ask(backend, "What is the capital of France?", tool_choice=choice)
        assert (answer.tool_calls, answer.reason) == ((), FinishReason.EOS)
        assert "Paris" in answer.text


@module_loop
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice("required"), {"get_weather", "set_unit"}),
        (ToolChoice("named", ("set_unit",)), {"set_unit"}),
        (ToolChoice("allowed", ("set_unit",), required=True), {"set_unit"}),
    ],
)
async def test_a_required_call_is_made(backend: NativeBackend, choice: ToolChoice, names: set[str]) -> None:
    schemas = {tool.name: tool.parameters for tool in (WEATHER, UNIT)}
    for seed in range(4):
        sampling = Sampling(temperature=1.5, seed=seed)
        answer = await ask(backend, "Tell me a story.", tool_choice=choice, sampling=sampling)
        assert (answer.text, answer.reason) == ("", FinishReason.TOOL_CALL)
        assert {call.name for call in answer.tool_calls} <= names
        assert len(answer.tool_calls) == 1 or choice.mode != "named"
        for call in answer.tool_calls:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name] or {})


@module_loop
async def test_strict_tools_bind_optional_calls(backend: NativeBackend) -> None:
    strict = Tool("get_weather", None, {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}, strict=True)
    answer = await ask(backend, "What is the weather in Paris?", tools=(strict,))
    assert [json.loads(call.arguments)["city"] for call in answer.tool_calls] == ["Rome"]
    assert "Paris" in (await ask(backend, "What is the capital of France?", tools=(strict,))).text


@module_loop
async def test_optional_calls_hold(backend: NativeBackend) -> None:
    tools = (WEATHER, Tool("get_time"))
    schemas = {"get_weather": WEATHER.parameters or {}, "get_time": {"maxProperties": 0}}
    called = set()
    for seed in range(6):
        sampling = Sampling(temperature=1.2, seed=seed)
        answer = await ask(backend, "What is the weather in Paris?", tools=tools, sampling=sampling)
        assert "<tool_call>" not in answer.text
        for call in answer.tool_calls:
            called.add(call.name)
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert "get_weather" in called


@module_loop
async def test_optional_calls_need_no_supported_schema(backend: NativeBackend) -> None:
    parameters = {"properties": {"city": {"type": "string", "pattern": "("}}}
    answer = await ask(backend, "What is the weather in Paris?", tools=(Tool("get_weather", None, parameters),))
    assert [call.name for call in answer.tool_calls] == ["get_weather"]


@module_loop
async def test_a_call_without_parameters_has_none(backend: NativeBackend) -> None:
    answer = await ask(backend, "What is the time?", tools=(Tool("get_time"),), tool_choice=ToolChoice("required"))
    assert {call.arguments for call in answer.tool_calls} == {"{}"}


@module_loop
async def test_a_cut_call_leaves_no_markup(backend: NativeBackend) -> None:
    for limit in range(1, 12):
        forced = ToolChoice("required")
        answer = await ask(backend, "Weather in Paris?", tool_choice=forced, stopping=Stopping(limit))
        assert (answer.text, answer.reason) == ("", FinishReason.LENGTH)


@module_loop
async def test_a_response_format_binds_the_answer_and_not_the_calls(backend: NativeBackend) -> None:
    grammar = Grammar("regex", "The capital of [a-zA-Z ]{3,20}")
    assert (await ask(backend, "What is the weather in Paris?", grammar=grammar)).tool_calls
    assert (await ask(backend, "What is the capital of France?", grammar=grammar)).text.startswith(
        "The capital of France"
    )


@module_loop
async def test_a_strict_tool_with_an_unsupported_schema_is_rejected(backend: NativeBackend) -> None:
    parameters = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    forced = ToolChoice("required")
    with pytest.raises(InvalidRequest, match="uniqueItems") as raised:
        await ask(backend, "Hi", tools=(Tool("f", None, parameters, strict=True),), tool_choice=forced)
    assert raised.value.param == "tools"
    assert (await ask(backend, "Hi", tools=(Tool("f", None, parameters),), tool_choice=forced)).tool_calls
