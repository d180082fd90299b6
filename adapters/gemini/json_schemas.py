"""The API's own form of schemas (a part of OpenAPI 3.0's) as JSON Schema.

Its types are in capitals, `nullable` stands beside the type, and numbers of items or characters may be texts, as
protocol buffers write 64-bit integers.
"""

from __future__ import annotations

from typing import Any

_DROPPED = frozenset({"nullable", "propertyOrdering", "example"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_FORMATS = frozenset({"enum", "float", "double", "int32", "int64"})
"""Values of `format` that only say again what the type or the enum says."""


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a schema. One that is JSON Schema already stays what it is."""
    changed = {name: _member(name, value) for name, value in schema.items() if name not in _DROPPED}
    if changed.get("format") in _FORMATS:
        del changed["format"]
    if schema.get("nullable") is True:
        return _nullable(changed)
    return changed


def _member(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if name == "properties" and isinstance(value, dict):
        return {key: json_schema(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
    if name in ("items", "additionalProperties") and isinstance(value, dict):
        return json_schema(value)
    if name in ("anyOf", "prefixItems") and isinstance(value, list):
        return [json_schema(inner) if isinstance(inner, dict) else inner for inner in value]
    return value


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the same values, and null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}
