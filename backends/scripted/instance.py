"""Makes a small JSON value that matches a schema, for answers under a grammar. Not a validator."""

from __future__ import annotations

from typing import Any

_SIMPLE: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}


def instance(schema: Any) -> Any:
    """A value that matches the schema; `{}` for a schema that is not understood."""
    if not isinstance(schema, dict):
        return {}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    # The first branch suffices for the first two; for `allOf` it is an approximation.
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return instance(schema[choice][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind  # `type` may be a list (nullable fields)
    if kind == "object":
        return {name: instance(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema.get("items"))] * int(schema.get("minItems", 1))
    if kind == "string":
        return "text".ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("maximum", _SIMPLE[kind]))
    return _SIMPLE.get(kind, {})
