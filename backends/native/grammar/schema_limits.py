"""Limits on JSON schemas that are checked before compilation, because llguidance's own limits do not cover them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any

import msgspec

from backends.native.grammar.regex_limits import check_regex
from schemas.errors import InvalidRequest

MAX_BYTES = 64 * 1024
"""Of a grammar's text."""

_MAX_DEPTH = 32
_MAX_PROPERTIES = 1_000
_MAX_ENUM_VALUES = 2_000
# A multiple's automaton has as many states as the number; multiples that hold together, as their common multiple.
_MAX_STATES = 10_000
_COMBINED = ("allOf", "anyOf", "oneOf")
# llguidance reads numbers as doubles: beyond this, it would generate another number than the schema's.
_MAX_EXACT = 2**53
_NUMBERS = ("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_schema(schema: Any, param: str) -> None:
    """Reject a schema beyond the limits.

    Args:
        schema: the decoded JSON value.
        param: the request's field that it came from, for the error.

    Raises:
        schemas.errors.InvalidRequest: names the limit that is exceeded.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON schema must be an object.", param=param)
    # Size first: it bounds the time of the other checks.
    _at_most(MAX_BYTES, len(msgspec.json.encode(schema)), "bytes", param)
    # This also bounds the depth for `_group`, which is recursive.
    found = list(_nodes(schema, _MAX_DEPTH, param))
    # Any object may be a schema. Objects that are none, such as `properties`, can only be counted too strictly.
    nodes = [node for node in found if node and isinstance(node, dict)]
    for pattern in _patterns(nodes):
        check_regex(pattern, param)
    _at_most(_MAX_PROPERTIES, sum(_size(node.get("properties")) for node in nodes), "properties", param)
    _at_most(_MAX_ENUM_VALUES, sum(_size(node.get("enum")) for node in nodes), "enum values", param)
    if sum(map(_common_multiple, _multiples(schema, nodes))) > _MAX_STATES:
        raise InvalidRequest(f"multipleOf is supported for numbers up to {_MAX_STATES} in all only.", param=param)
    for keyword in _NUMBERS:
        values = [value for node in nodes if keyword in node for value in _nodes(node[keyword], _MAX_DEPTH, param)]
        # Floats need no check: the JSON decoder has read them as doubles already, as llguidance does.
        if any(isinstance(value, int) and abs(value) > _MAX_EXACT for value in values):
            raise InvalidRequest(f"{keyword} is supported for whole numbers up to 2^53 only.", param=param)


def _patterns(nodes: list[dict[str, Any]]) -> Iterator[str]:
    """All regular expressions in a schema."""
    for node in nodes:
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        # Its keys are regular expressions (JSON Schema 2020-12, 10.3.2.2).
        if isinstance(node.get("patternProperties"), dict):
            yield from node["patternProperties"]


def _at_most(limit: int, count: int, what: str, param: str) -> None:
    if count > limit:
        raise InvalidRequest(f"A JSON schema may have at most {limit} {what}; this one has {count}.", param=param)


def _nodes(value: Any, depth: int, param: str) -> Iterator[Any]:
    """All values in a JSON value, outer values first."""
    # Depth first, with a stack of iterators instead of recursion: the depth of the input is not limited yet.
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels:
        for each in levels[-1]:
            yield each
            if children := _children(each):
                if len(levels) > depth:
                    raise InvalidRequest(f"A JSON schema may be nested at most {_MAX_DEPTH} deep.", param=param)
                # Go into the children now; the outer iterator continues where it is.
                levels.append(iter(children))
                break
        else:
            levels.pop()


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _size(value: Any) -> int:
    return len(_children(value))


def _multiples(schema: dict[str, Any], nodes: list[dict[str, Any]]) -> list[list[int | float]]:
    """The schema's `multipleOf` values, grouped by which may apply to one number; with references, any may."""
    # A reference may combine any two parts of the schema, so all numbers count as one group.
    if any("$ref" in node for node in nodes):
        return [[node["multipleOf"] for node in nodes if _is_number(node.get("multipleOf"))]]
    groups: list[list[int | float]] = []
    _group(schema, [], groups)
    return groups


def _group(value: Any, group: list[int | float], groups: list[list[int | float]]) -> None:
    if not isinstance(value, dict):
        for each in _children(value):
            _group(each, group, groups)
        return
    if _is_number(value.get("multipleOf")):
        # The group enters the result with its first number; further ones are added to the same list.
        if not group:
            groups.append(group)
        group.append(value["multipleOf"])
    for keyword, inner in value.items():
        # `allOf` and the like apply to the same value, so they share the group; `properties` and `items` describe other
        # values.
        _group(inner, group if keyword in _COMBINED else [], groups)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _common_multiple(numbers: list[int | float]) -> int:
    """The least common multiple, in units of the finest decimal place."""
    # By way of the decimal notation: 0.1 is one tenth here, not its binary approximation.
    exact = [abs(Decimal(str(number))) for number in numbers]
    places = max((-int(number.as_tuple().exponent) for number in exact), default=0)
    return lcm(*(int(number.scaleb(max(0, places))) for number in exact))
