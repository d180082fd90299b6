"""Objects of a schema get no properties but those that it lists."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.formats.closed_schemas import closed

STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"properties": {"a": STRING}},
            {"type": "object", "properties": {"a": STRING}, "additionalProperties": False},
        ),
        (
            {"properties": {"a": STRING}, "additionalProperties": True},
            {"type": "object", "properties": {"a": STRING}, "additionalProperties": True},
        ),
        (
            {"type": "array", "items": {"properties": {}}},
            {"type": "array", "items": {"type": "object", "properties": {}, "additionalProperties": False}},
        ),
        (
            {"$defs": {"x": {"properties": {}}}, "anyOf": [{"properties": {}}, {"$ref": "#/$defs/x"}]},
            {
                "$defs": {"x": {"type": "object", "properties": {}, "additionalProperties": False}},
                "anyOf": [{"type": "object", "properties": {}, "additionalProperties": False}, {"$ref": "#/$defs/x"}],
            },
        ),
        ({"properties": {"a": STRING}, "allOf": [{}]}, {"properties": {"a": STRING}, "allOf": [{}]}),
        (STRING, STRING),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "array", "items": True}, {"type": "array", "items": True}),
    ],
)
def test_schemas(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected
