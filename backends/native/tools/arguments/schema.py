"""JSON schemas of a function's parameters, as far as the ways to write arguments look into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAYS_NO_PROPERTY = {"type", "properties", "required", "title", "description", "$schema"}
"""Keywords of a schema that do not describe a property of the object, if `properties` is empty."""


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a function's arguments. A function without parameters is called with `{}`."""
    schema = {"type": "object"} | dict(parameters or {})
    # In JSON Schema an object without `properties` may have any. OpenAI: "Omitting `parameters` defines a function with
    # an empty parameter list."
    if set(schema) <= _SAYS_NO_PROPERTY and not schema.get("properties"):
        schema["additionalProperties"] = False
    return schema


def properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object's schema, by name."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def is_open(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have properties that its schema does not name, and names none."""
    return not properties(schema) and schema.get("additionalProperties") is not False


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its reference within `root` followed; `{}`, which is any value, for what is no schema."""
    for _ in range(8):  # a chain of references, not a loop
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for step in reference[2:].split("/"):
            schema = schema.get(step) if isinstance(schema, dict) else None
    return {}


def types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that a value may have, as far as the schema names them."""
    named = schema.get("type")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list):
        return tuple(name for name in named if isinstance(name, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return ("string",) if isinstance(values, list) and values and all(isinstance(v, str) for v in values) else ()


def values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) and listed else None


def with_definitions(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema as a schema of its own, with the definitions that its references name."""
    kept = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return kept | schema
