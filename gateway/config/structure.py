"""Examines fields against the structs that describe them: all mistakes at once, each with its path.

`msgspec.convert` stops at the first mistake and names its place in a text only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from gateway.config.base import nearest
from gateway.config.positions import KeyPath


class Problem(NamedTuple):
    """A mistake: where it is, and what is wrong.

    `path`: where it is shown; `text` is the whole sentence, with the names of the place in front.
    """

    path: KeyPath
    text: str


GONE: Final = object()
"""In place of a value that is wrong and has no default."""

_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")


def show(path: KeyPath) -> str:
    """A path as it is written in texts: `server.mounts[0].prefix`."""
    # A name with a line end, which TOML allows in quotes, would make two lines of one mistake.
    names = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isprintable() else repr(part)}" for part in path
    )
    return "".join(names).removeprefix(".")


def dotted_name(path: KeyPath, section: dict[str, Any], keys: Collection[str]) -> str:
    """The hint that a section's name has a dot, as in `[endpoints.gpt-4.1]`, which makes a section in a section; or "".

    Args:
        path: of the section.
        section: what stands in it.
        keys: what a section has.
    """
    inner: Any = section
    name = str(path[-1])
    while isinstance(inner, dict) and not inner.keys() & {*keys}:
        tables = [key for key, value in inner.items() if isinstance(value, dict)]
        if not tables:
            return ""
        name, inner = f"{name}.{tables[0]}", inner[tables[0]]
    quoted = f'[{show(path[:-1])}."{name}"]'
    return f"; a name with a dot stands in quotes: {quoted}" if inner is not section else ""


def examine(value: Any, wanted: Any, path: KeyPath, found: list[Problem]) -> Any:
    """The value without what is wrong in it, or `GONE`; what is wrong is added to `found`."""
    plain = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if get_origin(plain) in (Union, UnionType):
        plain = _member(value, get_args(plain)) or plain
    before = len(found)
    kept = value
    if isinstance(value, dict) and _is_struct(plain):
        kept = _struct(value, plain, path, found)
    elif isinstance(value, dict) and get_origin(plain) is dict:
        inner = {key: examine(each, get_args(plain)[1], (*path, key), found) for key, each in value.items()}
        kept = {key: each for key, each in inner.items() if each is not GONE}
    elif isinstance(value, list) and get_origin(plain) in (tuple, list):
        elements = [examine(each, get_args(plain)[0], (*path, place), found) for place, each in enumerate(value)]
        kept = [each for each in elements if each is not GONE]
    if len(found) > before:
        return kept
    # Nothing inside is wrong: what is left are constraints on the whole.
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        found.append(_problem(str(error), value, plain, path))
        return GONE
    return kept


def _struct(value: dict[str, Any], wanted: type[msgspec.Struct], path: KeyPath, found: list[Problem]) -> Any:
    hints = _hints(wanted)
    kept: dict[str, Any] = {}
    gone = False
    for field in msgspec.structs.fields(wanted):
        if field.name in value:
            inner = examine(value[field.name], hints[field.name], (*path, field.name), found)
            if inner is not GONE:
                kept[field.name] = inner
            gone |= inner is GONE and field.required
        elif field.required:
            hint = dotted_name(path, value, hints) if path else ""
            found.append(Problem(path, f"{show(path)}: `{field.name}` is missing{hint}".removeprefix(": ")))
            gone = True
            if hint:
                return GONE
    unknown = [key for key in value if key not in hints]
    found += [Problem((*path, key), f"{show((*path, key))}: unknown field{_known(key, hints)}") for key in unknown]
    return GONE if gone else kept


_CALLED = {
    "weight": "traffic_percentage",
    "base_url": "url",
    "api_base": "url",
    "endpoint": "url",
    "api_keys": "keys_env",
    "keys": "keys_env",
    "key_env": "api_key_env",
    "api_key": "api_key_env",
    "max_model_len": "context_length",
    "max_num_seqs": "max_sequences",
    "tensor_parallel_size": "tensor_parallel",
    "model_list": "endpoints",
    "models": "endpoints",
    "backend": "served_entities",
}
"""What other servers call it: what it is called here, in the tables that have it."""


def _known(key: str, known: Collection[str]) -> str:
    """A suggestion of what is meant, as the end of a sentence."""
    called = _CALLED.get(key)
    return f"; did you mean '{called}'?" if called in known else nearest(key, known)


def _problem(message: str, value: Any, wanted: Any, path: KeyPath) -> Problem:
    """msgspec's message with the path, which it knows the end of, and with the values that there are."""
    place = _PLACE.search(message)
    if place is not None:
        message = message[: place.start()]
        inner = re.findall(r"\.([^.\[]+)|\[(\d+)\]", place["path"])
        path = (*path, *(name or int(number) for name, number in inner))
    if message.startswith("Invalid enum value") and get_origin(wanted) is Literal and isinstance(value, str):
        known = [str(each) for each in get_args(wanted)]
        message = f"'{value}' is none of {', '.join(known)}{nearest(value, known)}"
    elif isinstance(value, list) and message == "Expected `object`, got `array`":
        message += f"; write [{show(path)}{'.NAME' if get_origin(wanted) is dict else ''}], not [[{show(path)}]]"
    elif isinstance(value, dict) and message == "Expected `array`, got `object`":
        message += f"; write [[{show(path)}]], or [{{ ... }}]"
    return Problem(path, f"{show(path)}: {message}".removeprefix(": "))


def _member(value: Any, members: tuple[Any, ...]) -> Any:
    """The one of several types that a value is meant to be of, as far as it has parts; None if it has none."""
    for member in members:
        plain = get_args(member)[0] if get_origin(member) is Annotated else member
        if isinstance(value, dict) and (_is_struct(plain) or get_origin(plain) is dict):
            return plain
        if isinstance(value, list) and get_origin(plain) in (tuple, list):
            return plain
        if isinstance(value, str) and get_origin(plain) is Literal:
            return plain
    return None


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


@cache
def _hints(wanted: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(wanted, include_extras=True)
