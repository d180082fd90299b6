"""Small JSON schemas of objects, each with an object that it allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.samples.chats import some_letters, some_words
from tools.demo_model.vocabulary import (
    ANIMALS,
    CAPITALS,
    CITIES,
    COLOR_NAMES,
    DAYS,
    LANGUAGES,
    MONTHS,
    NAMES,
    NAMES_OF_PROPERTIES,
    THINGS,
    WEATHER,
    WORDS,
)

_KINDS = ("string", "integer", "number", "boolean", "enum")
_BROAD_KINDS = (*_KINDS, "array", "nullable")
_TEXTS: dict[str, Callable[[Random], str]] = {
    "city": lambda rng: rng.choice(CITIES),
    "country": lambda rng: rng.choice(tuple(CAPITALS)),
    "color": lambda rng: rng.choice(COLOR_NAMES),
    "day": lambda rng: rng.choice(DAYS),
    "month": lambda rng: rng.choice(MONTHS),
    "language": lambda rng: rng.choice(LANGUAGES),
    "weather": lambda rng: rng.choice(WEATHER),
    "animal": lambda rng: rng.choice(ANIMALS),
    "item": lambda rng: rng.choice((*THINGS, *ANIMALS)),
    "date": lambda rng: f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
    "time": lambda rng: f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
    "email": lambda rng: f"{rng.choice(NAMES).lower()}@example.com",
    **dict.fromkeys(("name", "author", "user", "owner"), lambda rng: rng.choice(NAMES)),
}
"""What a string of this name is; any other one is a word or two."""
_INTEGERS = {"age": (1, 99), "year": (1990, 2039), "month": (1, 12), "day": (1, 28), "rating": (1, 5), "count": (1, 20)}
_NUMBERS = frozenset(("price", "weight", "height", "width", "score"))


@dataclass(frozen=True, slots=True)
class Filled:
    """A JSON schema of an object, and an object that it allows."""

    schema: dict[str, Any]
    value: dict[str, Any]


def draw_object(
    rng: Random, *, nested: bool = True, broad: bool = False, names: Sequence[str] = NAMES_OF_PROPERTIES
) -> Filled:
    """Draw an object of one to four properties.

    Args:
        rng: where all randomness comes from.
        nested: whether one of the properties may be an object itself.
        broad: whether there may be lists, values that may be null, properties that may be left out and further ones.
        names: words that the properties' names are made of.
    """
    properties: dict[str, Any] = {}
    value: dict[str, Any] = {}
    required: list[str] = []
    inner = rng.random() < 0.25 if nested else False
    for key in rng.sample(names, rng.randint(1, 4)):
        while (name := a_name(rng, names, key)) in properties:
            pass
        if inner:
            inside = draw_object(rng, nested=False, broad=broad, names=names)
            kind, drawn, inner = inside.schema, inside.value, False
        else:
            kind, drawn = _draw_value(rng, name, rng.choice(_BROAD_KINDS if broad else _KINDS))
        optional = broad and rng.random() < 0.2
        properties[name] = kind
        if not optional:
            required.append(name)
        if not optional or rng.random() < 0.5:
            value[name] = drawn
    schema = {"type": "object", "properties": properties, "required": required}
    return Filled(schema if broad and rng.random() < 0.5 else schema | {"additionalProperties": False}, value)


def fill(rng: Random, names: Sequence[str]) -> Filled:
    """An object of these properties, each of the kind that its name tells."""
    properties, value = {}, {}
    for name in names:
        kind = "number" if name in _NUMBERS else "string" if name in _TEXTS else "integer"
        properties[name], value[name] = _draw_value(rng, name, kind)
    schema = {"type": "object", "properties": properties, "required": [*names], "additionalProperties": False}
    return Filled(schema, value)


def a_name(rng: Random, names: Sequence[str], key: str = "") -> str:
    """A property's name: `key` or one of `names`, in a quarter of the cases with a second word, or made up."""
    key = key or rng.choice(names)
    return rng.choice((f"{key}_{rng.choice(names)}", some_letters(rng))) if rng.random() < 0.25 else key


def _draw_value(rng: Random, name: str, kind: str) -> tuple[dict[str, Any], Any]:
    if kind == "string":
        return {"type": "string"}, _a_text(rng, name)
    if kind == "integer":
        low, high = _INTEGERS.get(name) or rng.choice(((0, 9), (0, 99), (1, 999)))
        return {"type": "integer"}, rng.randint(low, high)
    if kind == "number":
        number = round(rng.uniform(0, rng.choice((1, 10, 100))), rng.choice((1, 2)))
        return {"type": "number"}, number
    if kind == "boolean":
        return {"type": "boolean"}, rng.random() < 0.5
    if kind == "array":
        items, first = _draw_value(rng, name, rng.choice(("string", "integer", "enum")))
        more = [rng.choice(items["enum"]) if "enum" in items else _draw_value(rng, name, items["type"])[1]]
        return {"type": "array", "items": items}, [first, *more][: rng.choices((0, 1, 2), (0.1, 0.4, 0.5))[0]]
    if kind == "nullable":
        schema, value = _draw_value(rng, name, rng.choice(("string", "integer", "number")))
        return {"anyOf": [schema, {"type": "null"}]}, value if rng.random() < 0.7 else None
    choices = rng.sample(WORDS, rng.randint(2, 4))
    return {"type": "string", "enum": choices}, rng.choice(choices)


def _a_text(rng: Random, name: str) -> str:
    if name in _TEXTS and rng.random() < 0.9:
        return _TEXTS[name](rng)
    drawn = rng.random()
    if drawn < 0.15:
        return rng.choice(NAMES)
    if drawn < 0.25:
        return rng.choice(CITIES)
    if drawn < 0.3:
        return some_letters(rng)
    return some_words(rng, 1, 2)
