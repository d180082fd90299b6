"""A reader of protocol buffers' text format, as far as Triton's `config.pbtxt` uses it.

Source: protobuf.dev/reference/protobuf/textformat-spec.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gateway.config import KeyPath
from gateway.importers.fields import Fields, UnreadableError

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}\[\]<>:;,])
    |(?P<word>[^\s{}\[\]<>:;,"'\#]+)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ENDS = {"{": "}", "<": ">"}
_DEEPEST = 50


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._tokens: list[_Token] = []
        self._at = 0
        position, line = 0, 1
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise UnreadableError(f"line {line}: {text[position]!r} stands where no value can stand")
            if found.lastgroup != "space":
                self._tokens.append(_Token(found.lastgroup or "", found[0], line))
            line += found[0].count("\n")
            position = found.end()

    def message(self, end: str, path: KeyPath) -> dict[str, Any]:
        """The fields up to a closing mark: a list for a field that occurs several times or is written as one."""
        if len(path) > 2 * _DEEPEST:
            raise UnreadableError("it is nested too deeply")
        values: dict[str, Any] = {}
        while self._at < len(self._tokens) and self._tokens[self._at].text != end:
            name = self._next("word")
            self.lines.setdefault((*path, name.text), name.line)
            self._skip(":")
            value = self._value((*path, name.text))
            self._skip(",", ";")
            if name.text in values:
                known = values[name.text]
                value = [
                    *(known if isinstance(known, list) else [known]),
                    *(value if isinstance(value, list) else [value]),
                ]
            values[name.text] = value
        if end:
            self._next("mark")
        return values

    def _value(self, path: KeyPath) -> Any:
        token = self._next("word", "text", "mark")
        if token.text in _ENDS:
            return self.message(_ENDS[token.text], path)
        if token.text == "[":
            values: list[Any] = []
            while not self._skip("]"):
                values.append(self._value((*path, len(values))))
                self._skip(",")
            return values
        if token.kind == "mark":
            raise UnreadableError(f"line {token.line}: '{token.text}' stands where no value can stand")
        if token.kind == "word":
            return {"true": True, "false": False}.get(token.text.lower(), _number(token.text))
        text = _text(token.text)
        # Texts side by side are one.
        while self._at < len(self._tokens) and self._tokens[self._at].kind == "text":
            text += _text(self._next("text").text)
        return text

    def _next(self, *kinds: str) -> _Token:
        if self._at >= len(self._tokens):
            raise UnreadableError("it ends in the middle")
        token = self._tokens[self._at]
        if token.kind not in kinds:
            raise UnreadableError(f"line {token.line}: '{token.text}' stands where a name should stand")
        self._at += 1
        return token

    def _skip(self, *marks: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text in marks:
            self._at += 1
            return True
        return False


def read_pbtxt(text: str) -> Fields:
    """The fields of a message in text format, with their lines.

    Raises:
        UnreadableError: it is no such text.
    """
    reader = _Reader(text)
    return Fields(reader.message("", ()), lines=reader.lines)


def _text(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), quoted[1:-1])


def _number(word: str) -> int | float | str:
    """A word as a number; a name of an enumeration stays a text."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
