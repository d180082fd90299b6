"""Arguments as named values: `city="Paris", n=2` in Python's form, `city:<escape>Paris<escape>,n:2` in Gemma's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from backends.native.grammar.schema_text import schema_text
from backends.native.tools.arguments.base import ArgumentsReader, Step
from backends.native.tools.arguments.scanner import Scanner
from backends.native.tools.arguments.schema import is_open, properties, resolved, types, values
from backends.native.tools.tags import Tags, ordered

_MAX_DEPTH = 6
_MAX_ELEMENTS = 64
_BOUNDS = ("minLength", "maxLength", "pattern", "format")
_RANGES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class Keywords(msgspec.Struct, frozen=True):
    """`key` `assigns` value, joined by `separator`, within brackets that the call's own literals have.

    `quote` stands around texts; "" is JSON's way. `words` are true, false and null. `bare_keys`: keys within a value
    have no quotes.
    """

    assigns: str = "="
    separator: str = ", "
    quote: str = ""
    words: tuple[str, str, str] = ("True", "False", "None")
    bare_keys: bool = False

    begins = ""

    @property
    def literals(self) -> str:
        """See `Arguments`."""
        return self.quote

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """See `Arguments`."""
        return _Reader(self, schema)

    def grammar(self, rule: str, schema: dict[str, Any], tokens: Tags, *, lenient: bool) -> list[str]:
        """See `Arguments`."""
        return _Grammar(self, tokens, schema, f"{rule}_any", lenient=lenient).arguments(rule)

    def value(self, text: str) -> Any:
        """The value that a text means; a text that means nothing is itself."""
        text = text.strip()
        return _braces_value(text, self.quote) if self.quote else _python_value(text)


class _Reader:
    __slots__ = ("_form", "_names", "_root", "_scanner", "_written")

    def __init__(self, form: Keywords, schema: Mapping[str, Any]) -> None:
        self._form = form
        self._root = schema
        self._names = tuple(properties(schema))
        quotes = (form.quote,) if form.quote else ('"', "'")
        self._scanner = Scanner(quotes, escapes=not form.quote, stops=",", ends_at=-1)
        self._written = 0

    def read(self, text: str) -> Step:
        used, passed = 0, ""
        while (mark := self._scanner.scan(text[used:])) is not None:
            # One value and the comma behind it are used at once; a bracket that ends the arguments stays.
            length = self._scanner.place
            passed += self._member(text[used : used + length - 1])
            if mark != ",":
                return Step(used + length - 1, passed + self.close(), done=True)
            used, self._scanner.place = used + length, 0
        return Step(used, passed)

    def close(self) -> str:
        return "}" if self._written else "{}"

    def _member(self, text: str) -> str:
        if not text.strip():
            return ""
        key, assigns, value = text.partition(self._form.assigns)
        if not assigns or not re.fullmatch(r"\s*[\w.\-]+\s*", key):  # a value alone: that of the next property
            place = self._written
            key, value = (self._names[place] if place < len(self._names) else f"arg{place}"), text
        start = "{" if self._written == 0 else ", "
        self._written += 1
        return f"{start}{json.dumps(key.strip())}: {json.dumps(self._value(key.strip(), value))}"

    def _value(self, key: str, text: str) -> Any:
        value = self._form.value(text)
        wanted = types(resolved(properties(self._root).get(key), self._root))
        # Some models put numbers in quotes.
        return _python_value(value) if isinstance(value, str) and wanted and "string" not in wanted else value


def _python_value(text: str) -> Any:
    # JSON first: grammars write texts as JSON, whose escapes for characters beyond 16 bits Python does not join.
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value
    return text


def _braces_value(text: str, quote: str) -> Any:
    """The value of a text in Gemma's form."""
    try:
        # As JSON: quoted texts are put aside, and keys get quotes.
        pieces = text.split(quote)
        for place, piece in enumerate(pieces):
            bare = re.sub(r"(?<=[{,])\s*([^\s{}\[\],:\"]+)\s*:", r'"\1":', piece)
            pieces[place] = json.dumps(piece) if place % 2 else bare
        return json.loads("".join(pieces))
    except (ValueError, RecursionError):
        return text.strip(quote) if quote in text else text


class _Grammar:
    """Makes the rules of one function's arguments."""

    def __init__(self, form: Keywords, tokens: Tags, root: dict[str, Any], any_rule: str, *, lenient: bool) -> None:
        self._form = form
        self._tokens = tokens
        self._root = root
        self._any = any_rule
        self._lenient = lenient
        self._lines: list[str] = []
        self._needs_any = False

    def arguments(self, rule: str) -> list[str]:
        form = self._form
        if is_open(self._root):
            key = rf"/[a-zA-Z_][a-zA-Z0-9_]*/ {json.dumps(form.assigns)} {self._any}"
            self._lines.append(f"{rule}: ({key} ({json.dumps(form.separator)} {key})*)?")
            self._needs_any = True
        else:
            self._object(rule, self._root, 0, lambda name: name + form.assigns, form.separator)
        if self._needs_any:
            self._add_any()
        return self._lines

    def _object(self, rule: str, schema: dict[str, Any], depth: int, opens: Any, separator: str) -> None:
        required = schema.get("required") or ()
        members = []
        for place, (name, given) in enumerate(properties(schema).items()):
            self._value(f"{rule}_{place}", given, depth + 1)
            members.append((f"{json.dumps(opens(name))} {rule}_{place}", name in required))
        self._lines += ordered(rule, members, json.dumps(separator))

    def _value(self, rule: str, given: Any, depth: int) -> None:
        schema = resolved(given, self._root)
        listed, choices = values(schema), schema.get("anyOf") or schema.get("oneOf")
        if depth > _MAX_DEPTH:
            self._needs_any = True
            self._lines.append(f"{rule}: {self._any}")
        elif listed is not None:
            self._lines.append(f"{rule}: {' | '.join(self._written(value) for value in listed)}")
        elif isinstance(choices, list) and choices:
            names = [f"{rule}_{place}" for place in range(len(choices))]
            self._lines.append(f"{rule}: {' | '.join(names)}")
            for name, choice in zip(names, choices, strict=True):
                self._value(name, choice, depth + 1)
        else:
            kinds = [self._kind(f"{rule}_{kind}", kind, schema, depth) for kind in types(schema)] or [self._any]
            self._needs_any |= kinds == [self._any]
            self._lines.append(f"{rule}: {' | '.join(kinds)}")

    def _kind(self, rule: str, kind: str, schema: dict[str, Any], depth: int) -> str:
        """Define a value of one type; returns the rule or expression."""
        true, false, null = map(json.dumps, self._form.words)
        if kind == "boolean":
            return f"{true} | {false}"
        if kind == "null":
            return null
        if kind == "string":
            self._string(rule, schema)
        elif kind == "array":
            self._array(rule, schema, depth)
        elif kind == "object" and properties(schema):
            self._lines.append(f'{rule}: "{{" {rule}_members "}}"')
            self._object(f"{rule}_members", schema, depth, self._key, self._form.separator)
        elif kind == "object":
            self._needs_any = True
            return f"{self._any}_object"
        else:
            bounds = {"type": kind} | {name: schema[name] for name in _RANGES if name in schema}
            self._lines.append(f"{rule}: %json {schema_text(bounds, lenient=self._lenient)}")
        return rule

    def _key(self, name: str) -> str:
        return f"{name}:" if self._form.bare_keys else f"{json.dumps(name)}: "

    def _string(self, rule: str, schema: dict[str, Any]) -> None:
        quote = self._form.quote
        bounds = {name: schema[name] for name in _BOUNDS if name in schema}
        if not quote:
            text = schema_text({"type": "string"} | bounds, lenient=self._lenient)
            self._lines.append(f"{rule}: %json {text}")
        else:
            self._lines.append(f"{rule}: {self._tokens.literal(quote)} {rule}_text")
            self._lines += self._tokens.until(f"{rule}_text", quote)

    def _array(self, rule: str, schema: dict[str, Any], depth: int) -> None:
        self._value(f"{rule}_item", schema.get("items", {}), depth + 1)
        least, most = schema.get("minItems") or 0, min(schema.get("maxItems", _MAX_ELEMENTS), _MAX_ELEMENTS)
        separator = json.dumps(self._form.separator)
        if most <= 0:
            self._lines.append(f'{rule}: "[]"')
            return
        listed = f"{rule}_item ({separator} {rule}_item){{{max(0, least - 1)},{most - 1}}}"
        self._lines.append(f'{rule}: "[" {listed if least else f"({listed})?"} "]"')

    def _written(self, value: Any) -> str:
        """An expression for one value."""
        true, false, null = self._form.words
        if value is None or isinstance(value, bool):
            return json.dumps(null if value is None else true if value else false)
        if isinstance(value, str) and self._form.quote:
            quote = self._tokens.literal(self._form.quote)
            return f"{quote} {json.dumps(value)} {quote}"
        return json.dumps(json.dumps(value))

    def _add_any(self) -> None:
        """Any value, and any object."""
        name, form, separator = self._any, self._form, json.dumps(self._form.separator)
        key = r'/[a-zA-Z0-9_]+/ ":"' if form.bare_keys else f'{name}_string ": "'
        true, false, null = map(json.dumps, form.words)
        self._string(f"{name}_string", {})
        self._lines += [
            f"{name}: {name}_string | {name}_number | {name}_array | {name}_object | {true} | {false} | {null}",
            f"{name}_number: %json {schema_text({'type': 'number'})}",
            f'{name}_array: "[" ({name} ({separator} {name})*)? "]"',
            f'{name}_object: "{{" ({key} {name} ({separator} {key} {name})*)? "}}"',
        ]
