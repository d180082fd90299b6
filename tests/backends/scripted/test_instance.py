"""JSON values that match a schema."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from backends.scripted.instance import instance


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": 3}, 3),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": ["boolean", "null"]}, True),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "string", "minLength": 6}, "text.."),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 1}),
        ({}, {}),
    ],
)
def test_a_value_matches_its_schema(schema: dict[str, Any], value: Any) -> None:
    assert instance(schema) == value
    jsonschema.validate(value, schema)


def test_what_is_no_schema_gives_an_empty_object() -> None:
    assert instance(True) == {}
