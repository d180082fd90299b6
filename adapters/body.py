"""Request bodies: JSON bytes to a wire struct, with limits on their size and an error for every way to be invalid.

`read` decodes the bodies of all protocols but Triton's, which needs ordered pairs. Of duplicate keys the last one wins;
a body is decoded once, so the checked value is the one that is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from adapters.unknown_fields import Unknown, find_unknown
from schemas.errors import InvalidRequest, MalformedBody

T = TypeVar("T")

MAX_DEPTH = 64
"""Levels of nesting in a body. msgspec has a limit of its own at about 1,000."""

# Strategy: a body is bounded by its size elsewhere (`limits.max_body`), but 16 MiB of `[],[],` become hundreds of
# megabytes of Python objects. The limits below bound that before anything is decoded, with `bytes.count`; brackets and
# commas in strings are counted, too, so the limits are far above what requests need.
MAX_CONTAINERS = 100_000
"""Opening brackets in a body, including those within strings."""

MAX_KEYS = 100_000
"""Keys of all objects in a body."""

MAX_ITEMS = 1_000_000
"""Commas in a body, including those within strings. A prompt of token ids has one comma per token."""

SMALL = 1 << 16
"""Bytes of a body that has less of everything than the limits above."""

LONGEST_WORD = 128
"""Characters of a wrong word that an error repeats."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON of the expected type."""

# Maps every digit to "0", so that one substring search finds any run of 19 digits. 2**63 has 19 digits: a shorter run
# fits into 64 bits. A false alarm (digits in a string or a float) costs only the walk.
_ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
# msgspec has no structured errors: the path is at the end of the message, after " - at ".
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_TYPE = re.compile(r"^Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`$")
_ENUM = re.compile(r"^Invalid enum value '(?P<value>.*)'$", re.DOTALL)
_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "decimal",
    "bool": "boolean",
    "array": "array",
    "object": "object",
    "null": "null",
}
"""A type of JSON in msgspec's words -> in OpenAI's."""


class Misfit(msgspec.Struct, frozen=True):
    """Why a body is no struct of a type.

    Attributes:
        path: the place in the body (`messages[0].content`); "" is the body itself.
        what: msgspec's sentence.
        is_missing: whether a required field is absent.
        expected: the types that the place may have, without null; () if its type is not what is wrong.
        got: the type that it has.
        word: what it has where it may only have one of these `words`; () if that is not what is wrong.
    """

    path: str
    what: str
    is_missing: bool = False
    expected: tuple[str, ...] = ()
    got: str = ""
    word: str = ""
    words: tuple[str, ...] = ()


def refuse(misfit: Misfit) -> InvalidRequest:
    """The error in OpenAI's words and with its codes."""
    path, what = misfit.path, misfit.what
    if misfit.is_missing:
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
    if misfit.expected:
        message = f"Invalid type for '{path}': expected {_any_of(misfit.expected)}, but got {_one(misfit.got)} instead."
        return InvalidRequest(message, param=path, code="invalid_type")
    if misfit.words:
        message = f"Invalid value: '{misfit.word[:LONGEST_WORD]}'. Supported values are: {one_of(misfit.words)}."
        return InvalidRequest(message, param=path, code="invalid_value")
    return InvalidRequest(f"Invalid value for '{path}': {what}." if path else f"{what}.", param=path or None)


def one_of(words: tuple[str, ...]) -> str:
    """The words as OpenAI lists them: `'a', 'b', and 'c'`."""
    *others, last = [f"'{word}'" for word in words]
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} and {last}" if others else last


def read(body: bytes, type: type[T]) -> tuple[T, Unknown]:
    """Decode `body` as a `type` struct.

    Returns:
        The struct, and the unknown fields of the body.

    Raises:
        schemas.errors.MalformedBody: not UTF-8, not JSON, nested deeper than `MAX_DEPTH`, too many items, a lone
            surrogate, a number beyond a double or an integer beyond 64 bits.
        schemas.errors.InvalidRequest: a field is missing, of a wrong type, or out of bounds; `param` names it.
    """
    return convert(parse(body), type)


def read_plain(decode: Callable[[bytes], T], body: bytes) -> T | None:
    """What `read` makes of a small body, in one step.

    Args:
        decode: decodes to a struct that has no unknown fields, and none of any type, at any depth.
        body: the body.

    Returns:
        None if the body is to be read, or refused, by `read`.
    """
    if len(body) > SMALL or _LONG_NUMBER in body.translate(_ANY_DIGIT):
        return None
    try:
        return decode(body)
    except UNREADABLE:
        return None


def convert(fields: Any, type: type[T], refuse: Callable[[Misfit], InvalidRequest] = refuse) -> tuple[T, Unknown]:
    """The second half of `read`, for a protocol that changes the fields first.

    Args:
        fields: the parsed body.
        type: of the struct.
        refuse: makes the error for a body that does not fit, in a protocol's own words.

    Raises:
        schemas.errors.MalformedBody: not an object.
        schemas.errors.InvalidRequest: as for `read`.
    """
    if not isinstance(fields, dict):
        raise MalformedBody("The request body must be a JSON object.")
    try:
        struct = msgspec.convert(fields, type)
    except msgspec.ValidationError as error:
        raise refuse(misfit_of(str(error), type)) from None
    known = _field_names(type)  # type: ignore[arg-type]
    unknown = {name: value for name, value in fields.items() if name not in known}
    return struct, Unknown(unknown, find_unknown(fields, type))


def parse(body: bytes) -> Any:
    """Decode any JSON value, with the limits of `read`.

    Raises:
        schemas.errors.MalformedBody: as for `read`.
    """
    # Counted before decoding: msgspec holds the GIL, and a body at these limits takes it milliseconds.
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MAX_CONTAINERS or (len(body) > MAX_KEYS and _too_many(body)):
        raise MalformedBody("The request body is not acceptable: it has too many items.")
    try:
        value = msgspec.json.decode(body)
    # For invalid UTF-8 msgspec raises the builtin UnicodeDecodeError, which is not one of its own errors.
    except UnicodeDecodeError:
        raise MalformedBody("The request body is not valid UTF-8.") from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        what = error if body.strip() else "it is empty"
        raise MalformedBody(f"The request body is not valid JSON: {what}") from None
    # Ordinary bodies, with few brackets and no long run of digits, skip the walk. A regular expression for the digits
    # would take ten times as long as `translate`.
    if brackets > MAX_DEPTH or _LONG_NUMBER in body.translate(_ANY_DIGIT):
        _walk(value)
    return value


def _too_many(body: bytes) -> bool:
    """Whether a body has too many keys or items. Shorter bodies than `MAX_KEYS` cannot have."""
    return body.count(b'":') > MAX_KEYS or body.count(b",") > MAX_ITEMS


def _walk(value: Any) -> None:
    """Check nesting and integers, level by level."""
    level = [value]
    # Breadth first and without recursion: a body at the limit cannot exhaust the interpreter's stack.
    for _ in range(MAX_DEPTH + 1):
        # From -2**63 (int64) to 2**64 - 1 (uint64): seeds are sent as either.
        if any(isinstance(item, int) and not -(2**63) <= item < 2**64 for item in level):
            raise MalformedBody("The request body is not acceptable: an integer has more than 64 bits.")
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise _too_deep()


def _too_deep() -> MalformedBody:
    return MalformedBody(f"The request body is nested deeper than {MAX_DEPTH} levels.")


def misfit_of(message: str, type: Any) -> Misfit:
    """What msgspec's message "Expected `int | null`, got `str` - at `$.n`" says of a body that is no `type`."""
    match = _PATH.match(message)
    assert match is not None, message
    # Of a dictionary msgspec does not tell the key.
    what, path = match["what"], (match["path"] or "$").removeprefix("$").removeprefix(".").replace("[...]", "")
    if missing := _MISSING.match(what):
        return Misfit(f"{path}.{missing['field']}".removeprefix("."), what, is_missing=True)
    if (word := _ENUM.match(what)) is not None:
        return Misfit(path, what, word=word["value"], words=_words_at(type, path))
    if (types := _TYPE.match(what)) is None or not path:
        return Misfit(path, what)
    # Every field may be null, which stands for an absent one: nothing to recommend.
    names = [_TYPES.get(name, name) for name in types["expected"].split(" | ") if name != "null"]
    return Misfit(path, what, expected=tuple(names), got=_TYPES.get(types["got"], types["got"]))


def _words_at(type: Any, path: str) -> tuple[str, ...]:
    """The words that a place may have; () if they are no texts."""
    found = [inspect.type_info(type)]
    for name in re.findall(r"\w+", path):
        inner: list[inspect.Type] = []
        for each in found:
            if isinstance(each, inspect.StructType):
                inner += [field.type for field in each.fields if field.encode_name == name]
            elif isinstance(each, inspect.VarTupleType | inspect.ListType):
                inner.append(each.item_type)
        found = [
            member for each in inner for member in (each.types if isinstance(each, inspect.UnionType) else (each,))
        ]
    literals = (each.values for each in found if isinstance(each, inspect.LiteralType))
    return tuple(str(word) for words in literals for word in words)


def _any_of(types: tuple[str, ...]) -> str:
    return _one(types[0]) if len(types) == 1 else f"one of {_one(types[0])} or {' or '.join(types[1:])}"


def _one(type: str) -> str:
    return type if type == "null" else f"{'an' if type[0] in 'aio' else 'a'} {type}"


@cache
def _field_names(type: type) -> frozenset[str]:
    # `encode_name` is the name on the wire, which `rename` may make different from the attribute's.
    return frozenset(field.encode_name for field in msgspec.structs.fields(type))
