"""Calls as the families write them, and answers as the reader reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from adapters.fold import fold
from backends.native.tools.arguments.json_object import JsonArguments
from backends.native.tools.arguments.keywords import Keywords
from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.family import CallFormat, Family
from backends.native.tools.literals import NUMBER
from backends.native.tools.reader import AnswerReader
from schemas.completion import Choice
from schemas.ir import Delta, Event, Finished, FinishReason, Started, Token, Tool, Usage

Call = tuple[str, dict[str, Any]]

WEATHER = Tool(
    "get_weather",
    "The weather.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "options": {
                "type": "object",
                "properties": {"hourly": {"type": "boolean"}, "of": {"type": "array", "items": {"type": "string"}}},
            },
        },
        "required": ["city"],
    },
)
TIME = Tool("get_time")
TOOLS = (WEATHER, TIME)
CALLS: tuple[Call, ...] = (
    ("get_weather", {"city": 'Paris, "é" (x)', "days": 2, "unit": "C", "options": {"hourly": True, "of": ["a", "b"]}}),
    ("get_time", {}),
)


def arguments(form: CallFormat, values: Mapping[str, Any]) -> str:
    """Arguments as a format writes them."""
    way = form.arguments
    if isinstance(way, JsonArguments):
        return json.dumps(values, ensure_ascii=False)
    if isinstance(way, Parameters):
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        json_behind = way.behind_json or way.behind
        behind = {key: way.behind if isinstance(value, str) else json_behind for key, value in values.items()}
        return "".join(way.before + key + behind[key] + text + way.closes for key, text in texts.items())
    assert isinstance(way, Keywords)
    return way.separator.join(key + way.assigns + _value(way, value) for key, value in values.items())


def _value(way: Keywords, value: Any) -> str:
    if isinstance(value, bool):
        return way.words[0] if value else way.words[1]
    if isinstance(value, str):
        return way.quote + value + way.quote if way.quote else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        keys = {key: f"{key}:" if way.bare_keys else f"{json.dumps(key)}: " for key in value}
        return "{" + way.separator.join(keys[key] + _value(way, each) for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + way.separator.join(_value(way, each) for each in value) + "]"
    return json.dumps(value)


def written(form: CallFormat, calls: Iterable[Call] = CALLS) -> str:
    """Calls as a format writes them."""
    parts = [
        (form.head + name + form.middle).replace(NUMBER, str(place)) + arguments(form, values) + form.tail
        for place, (name, values) in enumerate(calls)
    ]
    return form.opens + form.between.join(parts) + form.closes


def read(
    family: Family, pieces: Iterable[str], reason: FinishReason = FinishReason.EOS, *, in_reasoning: bool = False
) -> Choice:
    """An answer that arrives in pieces, one token each, and an end token unless the limit cuts it."""
    reader = AnswerReader(family, {tool.name: tool.parameters for tool in TOOLS}, in_reasoning=in_reasoning)
    events: list[Event] = [Started("m")]
    for piece in pieces:
        events += reader.feed(Delta(text=piece, tokens=(Token(7, piece),)))
    end = () if reason is FinishReason.LENGTH else (Token(1, "<|eos|>", special=True),)
    events += reader.finish(Finished(tokens=end, reason=reason))
    (choice,) = fold((*events, Usage(0, 0))).choices
    return choice


def calls_of(choice: Choice) -> list[Call]:
    """The calls of an answer."""
    return [(call.name, json.loads(call.arguments)) for call in choice.tool_calls]
