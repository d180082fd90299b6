"""JSON Schemas for protocols whose own servers write no other properties of an object than those that are listed.

TGI's compile a schema with outlines, Google's read a part of OpenAPI's: both take a schema with `properties` for one of
an object, and by JSON Schema such a schema also allows for numbers, texts and any further properties.
"""

from __future__ import annotations

from typing import Any

_OF_NAMES = ("properties", "$defs", "definitions")
_OF_ONE = ("items",)
_OF_LISTS = ("anyOf", "oneOf", "prefixItems")
_JOINED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""Keywords that add to the properties that a schema lists."""


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every object in it closed, unless it says otherwise."""
    changed = dict(schema)
    for name in _OF_NAMES:
        if isinstance(inner := schema.get(name), dict):
            changed[name] = {key: _closed(each) for key, each in inner.items()}
    for name in _OF_ONE:
        if name in schema:
            changed[name] = _closed(schema[name])
    for name in _OF_LISTS:
        if isinstance(inner := schema.get(name), list):
            changed[name] = [_closed(each) for each in inner]
    if isinstance(schema.get("properties"), dict) and not _JOINED.intersection(schema):
        return {"type": "object"} | changed | {"additionalProperties": schema.get("additionalProperties", False)}
    return changed


def _closed(schema: Any) -> Any:
    return closed(schema) if isinstance(schema, dict) else schema
