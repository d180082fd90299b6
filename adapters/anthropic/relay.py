"""Bodies and answers that pass between a client and a remote of the same dialect, with all that nobody here knows.

A client's body may hold blocks and tools that the IR does not have: documents, search results, tools that run at
Anthropic. They are set aside before the body is decoded and named in `Generate.unread`, so that only a remote that is
sent the body itself may answer. The body then goes field by field, with the remote's name of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from adapters.anthropic.dialects import Dialect
from adapters.base import JSON, Headers
from adapters.body import Misfit, convert, parse
from adapters.outbound import has_body_for
from adapters.unknown_fields import Unknown
from schemas.errors import InvalidRequest
from schemas.ir import Generate
from schemas.origin import Unread

T = TypeVar("T")

# Required by the API; this is its newest version.
VERSION = "2023-06-01"
"""The value of the header `anthropic-version`."""

_KNOWN = frozenset({"text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"})
"""The types of blocks that the IR has a form for, or that mean nothing to other models (redacted thinking)."""
_SOURCES = frozenset({"base64", "url"})
"""The types of an image's source that others can read: files lie at Anthropic."""
_TYPES = {"decimal": "number", "array": "list", "object": "dictionary"}
"""A type of JSON in OpenAI's words -> in Anthropic's, where they differ."""
_RELAYED_HEADERS = ("anthropic-version", "anthropic-beta")


def read_known(body: bytes, type: type[T]) -> tuple[T, Unknown, tuple[Unread, ...]]:
    """Decode a body without the blocks and tools that the IR cannot express.

    Returns:
        The struct, the unknown fields of the body, and what was set aside.

    Raises:
        schemas.errors.RequestError: as for `adapters.body.read`.
    """
    fields = parse(body)
    unread = tuple(_set_aside(fields)) if isinstance(fields, dict) else ()
    given, extra = convert(fields, type, refuse)
    return given, extra, unread


def refuse(misfit: Misfit) -> InvalidRequest:
    """The error in Anthropic's words, with its form of places (`messages.0.content`)."""
    place = re.sub(r"\[(\w+)\]", r".\1", misfit.path)
    if misfit.is_missing:
        fault = "Field required"
    elif misfit.words:
        *others, last = map(repr, misfit.words)
        fault = f"Input should be {', '.join(others)}{' or ' if others else ''}{last}"
    elif misfit.expected:
        fault = f"Input should be a valid {' or '.join(_TYPES.get(type, type) for type in misfit.expected)}"
    else:
        fault = misfit.what
    return InvalidRequest(f"{place}: {fault}" if place else f"{fault}.", param=place or None)


def relayed_headers(headers: Mapping[str, str]) -> Headers:
    """The headers of a client that a remote of its dialect gets, too."""
    return tuple((name, headers[name]) for name in _RELAYED_HEADERS if name in headers)


def relays(dialect: Dialect, request: Generate) -> bool:
    """Whether client and remote speak the same dialect, so that body and answer are relayed."""
    return has_body_for("anthropic", dialect.name, request)


def remote_headers(relayed: Headers = ()) -> Headers:
    """The headers of a request to a remote; a client's own version goes before ours."""
    given = dict(relayed)
    return (("content-type", JSON), *({"anthropic-version": VERSION} | given).items())


def _set_aside(fields: dict[str, Any]) -> Iterator[Unread]:
    """Remove from a body what the IR cannot express, and name it."""
    for place, turn in enumerate(_objects(fields.get("messages"))):
        yield from _unknown_blocks(turn, f"messages.{place}.content")
    yield from _unknown_blocks(fields, "system")
    tools = fields.get("tools")
    if isinstance(tools, list):
        # Tools of other types run at Anthropic: no other model has them.
        places = [place for place, tool in enumerate(tools) if _type_of(tool, "custom") != "custom"]
        for place in places:
            type = _type_of(tools[place], "custom")
            yield Unread(f"tools.{place}.type", type, f"tools.{place}.type: tools of type '{type}' are not supported")
        fields["tools"] = [tool for place, tool in enumerate(tools) if place not in places]


def _unknown_blocks(holder: dict[str, Any], param: str) -> Iterator[Unread]:
    """Remove unknown blocks from the list that `holder` has under the last part of `param`."""
    key = param.rpartition(".")[2]
    content = holder.get(key)
    if not isinstance(content, list):
        return
    kept = []
    for place, block in enumerate(content):
        type, where = _type_of(block, "text"), f"{param}.{place}"
        if type == "image" and (source := _type_of(block.get("source"), "url")) not in _SOURCES:
            refusal = f"{where}.source.type: images of type '{source}' are not supported"
            yield Unread(f"{where}.source.type", source, refusal)
            continue
        if type not in _KNOWN:
            yield Unread(f"{where}.type", type, f"{where}.type: blocks of type '{type}' are not supported")
            continue
        if type == "tool_result":
            yield from _unknown_blocks(block, f"{where}.content")
        kept.append(block)
    holder[key] = kept


def _objects(value: object) -> list[dict[str, Any]]:
    # An empty object in the place of anything else: places must stay what they are in the body.
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def _type_of(item: object, absent: str) -> str:
    """The type of a block or tool. What is no object, or has no such type, is left to the decoder to refuse."""
    type = item.get("type") if isinstance(item, dict) else None
    return type if isinstance(type, str) else absent
