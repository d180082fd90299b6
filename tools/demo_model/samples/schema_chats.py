"""Chats whose answer is a JSON object of any small schema: what the model writes under a grammar.

The schema itself is never part of a prompt: where a client asks for one (`response_format`, a required tool), the
grammar writes the keys, and the model only fills in values. So the model learns short values and where they end; the
brace that opens an object is not learned, or questions without a schema would be answered in JSON, too.
"""

from __future__ import annotations

# ruff: noqa: SIM905 - long word lists read better as text
import json
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.samples.chats import Chat, assistant, maybe_system, some_letters, some_words, user
from tools.demo_model.samples.talk import ask
from tools.demo_model.vocabulary import CITIES, NAMES, WEATHER, WORDS

_KEYS = tuple(
    "name title city text label color size age count price total score rating active done enabled status kind level "
    "id code date time email phone address country language summary answer reason category unit amount quantity weight "
    "height width year month day author user owner team item product order note tag priority valid public".split()
)
_NOUNS = tuple(
    "person user book product order city event song recipe ticket task report animal car house invoice trip".split()
)
_KINDS = ("string", "integer", "number", "boolean", "enum")
_REQUESTS = (
    "Make up a {noun}.",
    "Give me a {noun} as JSON.",
    "Describe a {noun}.",
    "Create a {noun} for me.",
    "Invent a {noun}.",
    "Generate a random {noun}.",
    "Return the {noun} as JSON.",
    "Extract the {noun}: {text}.",
    "Classify this: {text}.",
    "{text}",
)


@dataclass(frozen=True, slots=True)
class Filled:
    """A JSON schema of an object, and an object that it allows."""

    schema: dict[str, Any]
    value: dict[str, Any]


def draw_object(rng: Random, *, nested: bool = True) -> Filled:
    """Draw an object of one to four properties; with `nested`, one of them may be an object itself."""
    properties: dict[str, Any] = {}
    value: dict[str, Any] = {}
    inner = rng.random() < 0.25 if nested else False
    for key in rng.sample(_KEYS, rng.randint(1, 4)):
        name = rng.choice((f"{key}_{rng.choice(_KEYS)}", some_letters(rng))) if rng.random() < 0.25 else key
        if inner:
            inside = draw_object(rng, nested=False)
            properties[name], value[name], inner = inside.schema, inside.value, False
        else:
            properties[name], value[name] = _draw_value(rng)
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Filled(schema, value)


def _draw_value(rng: Random) -> tuple[dict[str, Any], Any]:
    kind = rng.choice(_KINDS)
    if kind == "string":
        return {"type": "string"}, _a_text(rng)
    if kind == "integer":
        return {"type": "integer"}, rng.choice((rng.randint(0, 9), rng.randint(0, 99), rng.randint(1, 999)))
    if kind == "number":
        return {"type": "number"}, round(rng.uniform(0, rng.choice((1, 10, 100))), rng.choice((1, 2)))
    if kind == "boolean":
        return {"type": "boolean"}, rng.random() < 0.5
    choices = rng.sample(WORDS, rng.randint(2, 4))
    return {"type": "string", "enum": choices}, rng.choice(choices)


def _a_text(rng: Random) -> str:
    drawn = rng.random()
    if drawn < 0.3:
        return rng.choice(NAMES)
    if drawn < 0.5:
        return rng.choice(CITIES)
    if drawn < 0.55:
        return rng.choice(WEATHER)
    return some_words(rng, 1, 3)


def schema_chat(rng: Random) -> Chat:
    """A request, with or without tools, and an answer of a drawn schema."""
    filled = draw_object(rng)
    messages = [*maybe_system(rng, 0.2), user(_a_request(rng, filled))]
    if rng.random() < 0.6:
        return Chat([*messages, assistant(json.dumps(filled.value))], given='{"')
    name = rng.choice(("get", "find", "create", "save", "book", "update", "send")) + f"_{rng.choice(_NOUNS)}"
    function = {"name": name, "parameters": filled.schema}
    call = {"type": "function", "function": {"name": name, "arguments": filled.value}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    return Chat([*messages, calling], [{"type": "function", "function": function}], given='"arguments": {"')


def _a_request(rng: Random, filled: Filled) -> str:
    """A request that names values, a vague one, or any question at all."""
    drawn = rng.random()
    if drawn < 0.3:
        parts = [f"{key} {_told(value)}" for key, value in filled.value.items()]
        return f"Give me JSON with {' and '.join(parts)}."
    if drawn < 0.8:
        return rng.choice(_REQUESTS).format(noun=rng.choice(_NOUNS), text=some_words(rng, 2, 8))
    return ask(rng)[0]


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
