"""Tool calls: found in text however it is cut, forced by grammar, and made by the bundled model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from backends.native.backend import NativeBackend
from backends.native.text.tool_parser import CLOSE, OPEN, ToolParser, can_call
from schemas.completion import Choice
from schemas.errors import InvalidRequest
from schemas.ir import (
    ChatPrompt,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Started,
    Stopping,
    Token,
    Tool,
    ToolChoice,
    Usage,
)
from tests.backends import laws

pytestmark = pytest.mark.torch


def parse(pieces: list[str], reason: FinishReason = FinishReason.EOS, most: int = 16) -> Choice:
    """What is made of a text in pieces, a token each; the last is the end token."""
    parser = ToolParser(most)
    events: list[Event] = [Started("m")]
    for piece in pieces:
        told = parser.feed(Delta(text=piece, tokens=(Token(7, piece),)))
        if told is not None:
            assert told.text or told.tool_calls, "an empty delta"
            events.append(told)
    end = Token(1, "<|end|>", special=True)
    events.append(parser.finish(Finished(tokens=(end,), reason=reason)))
    for event in events:
        if isinstance(event, Delta):
            assert event.text == "".join(token.text for token in event.tokens if not token.special)
    (choice,) = fold((*events, Usage(0, 0))).choices
    return choice


CALL = '<tool_call>{"name": "add", "arguments": {"a": [1, 2], "b": "}\\"]</tool_call>"}}</tool_call>'
ADD = ("add", '{"a": [1, 2], "b": "}\\"]</tool_call>"}')
TEXTS = [
    ("Just text, 1 < 2 <tool", "Just text, 1 < 2 <tool", []),
    (CALL, "", [ADD]),
    (f"Sure. {CALL}\n{CALL}\n", "Sure.", [ADD, ADD]),
    (f"{CALL} and then", " and then", [ADD]),
    ('<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("<tool_call>get it</tool_call>!", "<tool_call>get it</tool_call>!", []),
    ('a <tool_call>{"name": "f', 'a <tool_call>{"name": "f', []),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": {"x": "é\\\\"}}</tool_call>', "", [("f", '{"x": "é\\\\"}')]),
]


@pytest.mark.parametrize(("text", "said", "calls"), TEXTS)
@given(data=st.data())
def test_calls_are_found_however_the_text_is_cut(
    data: st.DataObject, text: str, said: str, calls: list[tuple[str, str]]
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1)), label="cuts"))
    choice = parse([text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert choice.text == said
    assert [(call.name, call.arguments) for call in choice.tool_calls] == calls
    assert len({call.id for call in choice.tool_calls}) == len(calls)
    assert choice.reason is (FinishReason.TOOL_CALL if calls else FinishReason.EOS)
    assert choice.tokens[-1].text == "<|end|>"


def test_a_call_that_is_cut_short_is_told_as_such() -> None:
    choice = parse(['<tool_call>{"name": "f", "arguments": {"x": ', "12"], FinishReason.LENGTH)
    assert (choice.reason, choice.tool_calls[0].arguments) == (FinishReason.LENGTH, '{"x": 12')


def test_calls_beyond_the_most_are_dropped() -> None:
    choice = parse([CALL, CALL, "more"], most=1)
    assert (len(choice.tool_calls), choice.text) == (1, "")


@pytest.mark.parametrize(
    ("template", "can"),
    [
        (None, False),
        ("{{ messages }}", False),
        ("{% if tools %}<tool_call>", True),
        ("{% if tools %}<tool_call><function=x>", False),
    ],
)
def test_which_models_can_call(template: str | None, can: bool) -> None:
    assert can_call(template) is can


# --- with the bundled model -------------------------------------------------------------------------------------

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
async def test_the_model_calls_by_itself(backend: NativeBackend) -> None:
    choice = await ask(backend, "What is the weather in Paris?")
    (call,) = choice.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert (choice.text, choice.reason) == ("", FinishReason.TOOL_CALL)


@module_loop
async def test_the_model_need_not_call(backend: NativeBackend) -> None:
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
async def test_a_call_that_must_be_is_made(backend: NativeBackend, choice: ToolChoice, names: set[str]) -> None:
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
async def test_strict_tools_hold_where_the_model_may_choose(backend: NativeBackend) -> None:
    strict = Tool("get_weather", None, {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}, strict=True)
    answer = await ask(backend, "What is the weather in Paris?", tools=(strict,))
    assert [json.loads(call.arguments)["city"] for call in answer.tool_calls] == ["Rome"]
    assert "Paris" in (await ask(backend, "What is the capital of France?", tools=(strict,))).text


@module_loop
async def test_a_format_binds_the_answer_and_not_the_calls(backend: NativeBackend) -> None:
    grammar = Grammar("regex", "The capital of [a-zA-Z ]{3,20}")
    assert (await ask(backend, "What is the weather in Paris?", grammar=grammar)).tool_calls
    assert (await ask(backend, "What is the capital of France?", grammar=grammar)).text.startswith(
        "The capital of France"
    )


@module_loop
async def test_a_strict_tool_that_cannot_be_followed(backend: NativeBackend) -> None:
    parameters = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    forced = ToolChoice("required")
    with pytest.raises(InvalidRequest, match="uniqueItems") as raised:
        await ask(backend, "Hi", tools=(Tool("f", None, parameters, strict=True),), tool_choice=forced)
    assert raised.value.param == "tools"
    assert (await ask(backend, "Hi", tools=(Tool("f", None, parameters),), tool_choice=forced)).tool_calls


@module_loop
async def test_the_tags_are_tokens(backend: NativeBackend) -> None:
    assert backend._text is not None
    assert backend._text.has_call_tokens
    assert OPEN != CLOSE
