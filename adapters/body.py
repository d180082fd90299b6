"""Request bodies: JSON bytes to a wire struct, once, with every way it can fail told apart.

`read` is the one decode boundary of all protocols that take a plain JSON object (Triton reads ordered pairs itself).
Duplicate keys: the last one wins, and as a body is decoded once, what was checked is what runs.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from schemas.errors import InvalidRequest, MalformedBody

T = TypeVar("T")

MAX_DEPTH = 64
"""Levels of nesting that a body may have. msgspec stops by itself at about 1,000, this is what we promise."""

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")


def read(body: bytes, type: type[T]) -> tuple[T, dict[str, Any]]:
    """Decode `body` as a `type` struct.

    Returns:
        The struct, and the fields of the body's object that it does not know.

    Raises:
        schemas.errors.MalformedBody: not UTF-8, not JSON, nested deeper than `MAX_DEPTH`, a lone surrogate, or a
            number beyond a double.
        schemas.errors.InvalidRequest: a field is missing, of a wrong type, or out of its bounds; `param` names it.
    """
    return convert(parse(body), type)


def convert(fields: Any, type: type[T]) -> tuple[T, dict[str, Any]]:
    """The second half of `read`, for a protocol that has to look at the fields first.

    Raises:
        schemas.errors.MalformedBody: not an object.
        schemas.errors.InvalidRequest: as for `read`.
    """
    if not isinstance(fields, dict):
        raise MalformedBody("The request body must be a JSON object.")
    try:
        struct = msgspec.convert(fields, type)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    known = _field_names(type)  # type: ignore[arg-type]
    return struct, {name: value for name, value in fields.items() if name not in known}


def parse(body: bytes) -> Any:
    """Decode any JSON value, bounded as `read` is.

    Raises:
        schemas.errors.MalformedBody: as for `read`.
    """
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise MalformedBody("The request body is not valid UTF-8.") from None
    except RecursionError:
        raise MalformedBody(f"The request body is nested deeper than {MAX_DEPTH} levels.") from None
    except msgspec.DecodeError as error:
        raise MalformedBody(f"The request body is not valid JSON: {error}") from None
    # Fewer brackets than the bound cannot nest deeper than it: ordinary bodies are never walked.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise MalformedBody(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _invalid(message: str) -> InvalidRequest:
    """msgspec says "Expected `int`, got `str` - at `$.n`": the path becomes `param`."""
    match = _PATH.match(message)
    assert match is not None, message
    what, path = match["what"], (match["path"] or "$").removeprefix("$").removeprefix(".")
    if missing := _MISSING.match(what):
        path = f"{path}.{missing['field']}".removeprefix(".")
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path)
    return InvalidRequest(f"Invalid value for '{path}': {what}." if path else f"{what}.", param=path or None)


@cache
def _field_names(type: type) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(type))
