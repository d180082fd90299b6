"""Arguments as one tag per parameter, whose texts are values as they are and whose other values are JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import regex

from backends.native.grammar.schema_text import schema_text
from backends.native.tools.arguments.base import ArgumentsReader, Step
from backends.native.tools.arguments.schema import (
    arguments_schema,
    is_open,
    properties,
    resolved,
    types,
    values,
    with_definitions,
)
from backends.native.tools.literals import loose
from backends.native.tools.tags import ANY, Tags, escaped, ordered

_KEY = r"(?P<key>[^<>\n\"=]{1,256}?)"


class Parameters(msgspec.Struct, frozen=True):
    """`before` key `behind` value `closes`, for each parameter.

    `behind_json`: what stands in place of `behind` before a value that is JSON, in a family that tells the two apart.
    """

    before: str
    behind: str
    closes: str
    behind_json: str = ""

    begins = ""

    @property
    def literals(self) -> str:
        """See `Arguments`."""
        return "\n".join((self.before, self.behind, self.behind_json, self.closes))

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """See `Arguments`."""
        return _Reader(self, schema)

    def grammar(self, rule: str, schema: dict[str, Any], tokens: Tags, *, lenient: bool) -> list[str]:
        """See `Arguments`."""
        if is_open(schema):
            return self._any(rule, tokens)
        required = schema.get("required") or ()
        members, lines = [], []
        for place, (name, given) in enumerate(properties(schema).items()):
            value = f"{rule}_{place}"
            kind = resolved(given, schema)
            behind = self.behind if types(kind) == ("string",) else self.behind_json or self.behind
            opening = tokens.literal(f"{self.before}{name}{behind}", optional_breaks=False)
            members.append((f"{opening} {value}", name in required))
            lines += self._value(value, kind, schema, tokens, lenient=lenient)
        return [*ordered(rule, members, ""), *lines]

    def _any(self, rule: str, tokens: Tags) -> list[str]:
        """Lines that define `rule`: any parameters."""
        before, behind = (tokens.literal(each) for each in (self.before, self.behind))
        closes = tokens.literal(self.closes, optional_breaks=False)
        value, key = f"{behind} {rule}_value", f"{rule.upper()}_KEY"
        lines = [rf"{key}: /[a-zA-Z_][a-zA-Z0-9_.\-]*/", *tokens.until(f"{rule}_value", self.closes)]
        if self.behind_json:
            value = f"({value} | {tokens.literal(self.behind_json)} {rule}_json {closes})"
            lines.append(f"{rule}_json: %json {{}}")
        return [f"{rule}: ({before} {key} {value})*", *lines]

    def _value(
        self, rule: str, schema: dict[str, Any], root: Mapping[str, Any], tokens: Tags, *, lenient: bool
    ) -> list[str]:
        closes = tokens.literal(self.closes, optional_breaks=False)
        if types(schema) != ("string",):
            whole = with_definitions(schema, root)
            return [f"{rule}: {rule}_json {closes}", f"{rule}_json: %json {schema_text(whole, lenient=lenient)}"]
        if (listed := values(schema)) is not None:
            return [f"{rule}: ({' | '.join(json.dumps(text) for text in listed)}) {closes}"]
        return tokens.until(rule, self.closes, _text(schema))


def _text(schema: Mapping[str, Any]) -> str:
    """The pattern of a text by its schema."""
    if isinstance(pattern := schema.get("pattern"), str):
        before, behind = ("" if pattern.startswith("^") else ANY), ("" if pattern.endswith("$") else ANY)
        return f"{before}({pattern.removeprefix('^').removesuffix('$').replace('/', escaped('/'))}){behind}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return ANY if (least, most) == (0, "") else f"(?s:.{{{least},{most}}})"


class _Reader:
    """Between two parameters, or in the value of one."""

    __slots__ = ("_breaks", "_closes", "_key", "_marked", "_open", "_root", "_streams", "_written")

    def __init__(self, form: Parameters, schema: Mapping[str, Any]) -> None:
        # The line breaks around a value belong to the markup, where the family writes them.
        self._breaks = form.closes.startswith("\n")
        behind = loose(form.behind.rstrip())
        if form.behind_json:
            behind = f"(?:(?P<text>{behind})|{loose(form.behind_json.rstrip())})"
        self._marked = bool(form.behind_json)
        self._open = regex.compile(rf"\s*{loose(form.before)}{_KEY}{behind}" + (r"\n?" if self._breaks else ""))
        self._closes = form.closes.strip()
        self._root = arguments_schema(schema)
        self._key: str | None = None
        self._streams = False  # whether the value is a text that is passed on while it is written
        self._written = 0  # parameters so far

    def read(self, text: str) -> Step:
        used, passed = 0, ""
        while True:
            step = self._read_key(text[used:]) if self._key is None else self._read_value(text[used:])
            used, passed = used + step.used, passed + step.json
            if step.done or not step.used:
                return Step(used, passed, step.done)

    def close(self) -> str:
        ended = "" if self._key is None else '"' if self._streams else "null"
        self._key = None
        return ended + ("}" if self._written else "{}")

    def _read_key(self, text: str) -> Step:
        found = self._open.match(text, partial=True)
        if found is None:
            return Step(0, self.close(), done=True)
        # A line break that belongs to the tag may still arrive.
        if found.partial or (self._breaks and found.end() == len(text) and not text.endswith("\n")):
            return Step(0, "")
        self._key = found["key"]
        if self._marked:
            self._streams = found["text"] is not None
        else:
            self._streams = types(resolved(properties(self._root).get(self._key), self._root)) == ("string",)
        start = ("{" if self._written == 0 else ", ") + json.dumps(self._key) + ": "
        self._written += 1
        return Step(found.end(), start + ('"' if self._streams else ""))

    def _read_value(self, text: str) -> Step:
        end = text.find(self._closes)
        if end < 0:
            certain = len(text) - _partial(text, self._closes) - 1
            return Step(certain, json.dumps(text[:certain])[1:-1]) if self._streams and certain > 0 else Step(0, "")
        value = text[:end]
        if self._breaks:
            value = value.removesuffix("\n")
        self._key = None
        written = json.dumps(value)[1:] if self._streams else _json_value(value)
        return Step(end + len(self._closes), written)


def _partial(text: str, tag: str) -> int:
    """The number of characters at the end that may be the beginning of a tag."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)


def _json_value(text: str) -> str:
    """The JSON of a value that may be other than a text; what is no JSON is a text."""
    words = {"True": "true", "False": "false", "None": "null"}
    try:
        return json.dumps(json.loads(words.get(text.strip(), text)))
    except ValueError:
        return json.dumps(text)
