"""Answers in a format where calls are the whole answer, too: whether one can be taken for the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backends.native.tools.arguments.schema import properties, resolved, types, values
from schemas.ir import Grammar

_ANY = '{["-0123456789tfn'
_FIRST = {"object": "{", "array": "[", "string": '"', "boolean": "tf", "null": "n"}
_FIRST |= dict.fromkeys(("number", "integer"), "-0123456789")
"""What JSON of a type begins with."""
_ARGUMENTS = ("arguments", "parameters")
_COMBINED = ("anyOf", "oneOf", "allOf", "patternProperties", "if", "not", "$ref")
"""Keywords by which an object may have properties that `properties` does not name."""


def first_characters(grammar: Grammar) -> str:
    """All characters with which an answer in a format may begin, as far as it is JSON; else those of any JSON."""
    if grammar.kind == "json_object":
        return "{"
    if grammar.kind != "json_schema" or not isinstance(grammar.value, dict):
        return _ANY
    schema = resolved(grammar.value, grammar.value)
    if (listed := values(schema)) is not None:
        return "".join({json.dumps(value)[0] for value in listed})
    named = types(schema)
    return "".join(_FIRST.get(name, _ANY) for name in named) if named else _ANY


def without_calls(grammar: Grammar, members: Sequence[str]) -> Grammar | None:
    """A format whose answers, objects, are never calls, and are answers in the given one; None if there is none.

    Args:
        grammar: the format.
        members: the names of the members with a call's name and its arguments.
    """
    schema: Any = grammar.value
    if grammar.kind == "json_object":
        # Any object will do, so it does without the members that make a call. The name alone makes none.
        excluded = dict.fromkeys((*_ARGUMENTS, members[1]), False)
        return Grammar("json_schema", {"type": "object", "properties": excluded})
    if grammar.kind != "json_schema" or any(keyword in schema for keyword in _COMBINED):
        return None
    named = properties(schema)
    # A model may write its arguments under either name, and both are read.
    if not named or (members[0] in named and any(name in named for name in (*_ARGUMENTS, members[1]))):
        return None
    # A property that is required beside those that are named could not be written any more.
    if not set(schema.get("required") or ()) <= set(named):
        return None
    return Grammar(grammar.kind, schema | {"additionalProperties": False}, grammar.name, grammar.strict)
