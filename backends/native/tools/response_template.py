"""A model's own description of its answers, the `response_template` of transformers, as a row of the table of families.

Source: transformers' documentation, "Response Parsing" (`transformers.utils.chat_parsing`), version 1. Only tags that
are literal texts are taken, and calls in JSON: then answers are streamed and calls held by a grammar, as for every
family, and nothing that came with a model is run. Its regular expressions would have to be run over each answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, Reasoning, member

NAME = "response_template"
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MAX_TAG = 200  # characters
_PLACE = re.compile(r"\{(?:content\.)?(\w+)\}")
_WHOLE = "{content}"


class NotRead(Exception):
    """The template has a form that is not supported; the text says which."""


def read_response_template(template: Any) -> Family:
    """The family of a model with this response template.

    Raises:
        NotRead: it is in another form than the ones that are read.
    """
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping) or template.get("version", 1) != 1:
        raise NotRead("it is not of version 1")
    if not all(isinstance(field, Mapping) for field in fields.values()):
        raise NotRead("a field is no object")
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    calls, text = fields.get("tool_calls"), fields.get("content", {})
    return Family(
        name=NAME,
        calls=() if calls is None else _calls(calls),
        reasoning=None if reasoning is None else Reasoning(_tag(reasoning, "open"), _tag(reasoning, "close")),
        # What closes a text is often the end token, which a grammar has no place for: it is left out where it is read.
        text=(_tag(text, "open", optional=True), ""),
        dropped=(_tag(text, "close", optional=True),),
    )


def _tag(field: Mapping[str, Any], end: str, *, optional: bool = False) -> str:
    """The text that begins or ends a field."""
    if f"{end}_pattern" in field:
        raise NotRead(f"'{end}_pattern' is a regular expression")
    tag = field.get(end, "" if optional else None)
    if isinstance(tag, list) and len(tag) == 1:
        (tag,) = tag
    if not isinstance(tag, str) or not (tag or optional) or len(tag) > _MAX_TAG:
        raise NotRead(f"a field has no single text for '{end}'")
    return tag


def _calls(field: Mapping[str, Any]) -> tuple[CallFormat, ...]:
    """The ways in which calls are written: the arguments of some models have either of two names."""
    if field.get("content", "text") != "json" or field.get("content_args"):
        raise NotRead("calls are not JSON")
    opens, closes, listed = _tag(field, "open"), _tag(field, "close", optional=True), bool(field.get("transform_each"))
    opens, closes = opens.strip(), closes.strip()
    return tuple(
        CallFormat(
            trigger=opens,
            opens=f"{opens}\n[" if listed else "",
            head=head if listed else f"{opens}\n{head}",
            middle=middle,
            arguments=JSON,
            tail="}" if listed else f"}}\n{closes}",
            between=", " if listed else "\n",
            closes=f"]\n{closes}" if listed else "",
            in_object=True,
        )
        for head, middle in _members(field.get("transform"))
    )


def _members(transform: Any) -> list[tuple[str, str]]:
    """Head and middle of a call's object, by the names that the template finds its name and its arguments under."""
    function = transform.get("function") if isinstance(transform, Mapping) else _WHOLE
    if function == _WHOLE:
        # The object is the call as it is: `{"name": …, "arguments": …}`.
        return [member(), member(arguments="parameters")]
    if not isinstance(function, Mapping):
        raise NotRead("the calls have no function")
    places = [_PLACE.fullmatch(str(function.get(name))) for name in ("name", "arguments")]
    if None in places:
        raise NotRead("the name of a call, or its arguments, are not members of its JSON")
    name, arguments = (place[1] for place in places if place is not None)
    return [member(name, arguments)]
