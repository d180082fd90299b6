"""How a family of chat models writes tool calls and reasoning, as data.

A call is written as

    opens  (head name middle arguments tail)  between  (head name middle arguments tail)  ...  closes

and each of these is a literal text of the family. The reader (`reader`) and the grammar (`grammar`) both follow from
it. In the grammar a line break in a literal is optional; the reader takes any white space where a literal has some,
and around the punctuation of JSON.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import msgspec
import regex

from backends.native.tools.arguments.base import Arguments
from backends.native.tools.literals import loose

_NAME = r"(?P<name>[^\s\"'<>(){}\[\]|,=]{1,256}?)"
_JSON_NAME = r'(?P<name>(?:[^"\\]|\\.){1,256}?)'


class CallFormat(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One way to write calls. The literals are those of the module's docstring, as the family's template writes them.

    Attributes:
        trigger: what begins the first call: the beginning of `opens` and `head` together.
        arguments: how arguments are written.
        in_object: the head, the name and the arguments are members of a JSON object, which `tail` closes.
        at_start: calls are the whole answer, so `trigger` counts at the beginning only.
        before: a token that may precede calls at the beginning of an answer.
        middle_pattern: a regular expression in place of `middle`, for models that write more than they are shown.
    """

    arguments: Arguments
    trigger: str = ""
    opens: str = ""
    head: str = ""
    middle: str = ""
    tail: str = ""
    between: str = ""
    closes: str = ""
    in_object: bool = False
    at_start: bool = False
    before: str = ""
    middle_pattern: str = ""

    @cached_property
    def literals(self) -> str:
        """All that this format may write beside names and arguments, as one text."""
        parts = (self.before, self.opens, self.head, self.middle, self.middle_pattern, self.tail, self.closes)
        return "\n".join((*parts, self.arguments.literals)).replace("\\", "")

    @cached_property
    def first(self) -> Any:
        """The pattern of everything before the arguments of the first call."""
        before = f"(?:{loose(self.before)})?" if self.before else ""
        return self._pattern(before + loose(self.opens))

    @cached_property
    def next(self) -> Any:
        """The same for a further call within `opens` and `closes`."""
        return self._pattern(loose(self.between))

    @cached_property
    def end(self) -> Any:
        """The pattern of what ends a call, behind its arguments or, with `in_object`, behind its object."""
        return regex.compile(r"\s*" + loose(self.tail.removeprefix("}") if self.in_object else self.tail))

    @cached_property
    def closing(self) -> Any:
        """The pattern of `closes`."""
        return regex.compile(r"\s*" + loose(self.closes))

    @property
    def has_section(self) -> bool:
        """Whether further calls follow within what `opens` opened."""
        return bool(self.opens or self.closes or (self.at_start and self.between))

    def _pattern(self, before: str) -> Any:
        name = _JSON_NAME if self.head.endswith('"') else _NAME
        middle = self.middle_pattern or loose(self.middle)
        return regex.compile(rf"\s*{before}{loose(self.head)}{name}{middle}{self.arguments.begins}")


class Reasoning(msgspec.Struct, frozen=True):
    """The tags around reasoning."""

    opens: str
    closes: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a group of models that write the same.

    Attributes:
        name: in the configuration (`tool_format`).
        marks: texts that the chat template has, all of them.
        calls: how calls are written: grammars have the first way, the reader knows all.
        reasoning: the tags around reasoning, where the model has them.
        text: the tags around the text of an answer, if a text needs some.
        dropped: further markup, which is no part of a text.
        most: the number of calls that an answer may have, if the family has a limit.
    """

    name: str
    marks: tuple[str, ...] = ()
    calls: tuple[CallFormat, ...] = ()
    reasoning: Reasoning | None = Reasoning("<think>", "</think>")
    text: tuple[str, str] = ("", "")
    dropped: tuple[str, ...] = ()
    most: int | None = None

    @property
    def markup(self) -> str:
        """All literals of the family, as one text: a special token whose name is in it is read like text."""
        tags = (self.reasoning.opens, self.reasoning.closes) if self.reasoning else ()
        return "\n".join((*tags, *self.text, *self.dropped, *(call.literals for call in self.calls)))


def member(name: str = "name", arguments: str = "arguments") -> tuple[str, str]:
    """Head and middle of a call that is a JSON object: `{"name": "`, and `", "arguments": ` with the names given."""
    return f'{{"{name}": "', f'", {json.dumps(arguments)}: '
