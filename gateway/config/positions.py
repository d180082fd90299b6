"""On which line of a TOML text each key stands, which `tomllib` does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""Keys and places in arrays, from the top of the file: `("endpoints", "chat", "served_entities", 0, "backend")`."""

# In this order: three quotes before one. Bare words are keys, numbers, dates and booleans.
_TOKEN = re.compile(
    r'''(?P<string>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')'''
    r"|(?P<comment>#[^\n]*)|(?P<newline>\n)|(?P<space>[ \t\r]+)|(?P<mark>[\[\]{},=.])|(?P<word>[^\s\[\]{},=.#\"']+)",
    re.DOTALL,
)


class Positions:
    """The lines of a text's keys.

    Args:
        text: valid TOML.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {(): 1}
        self._tokens = list(_tokens(text))
        self._at = 0
        self._sizes: dict[KeyPath, int] = {}  # of arrays of tables
        self._read()

    def line(self, path: KeyPath) -> int:
        """The line of a key; of one that is not there, that of the nearest part of its path."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _read(self) -> None:
        table: KeyPath = ()
        while self._at < len(self._tokens):
            kind, word, line = self._tokens[self._at]
            if kind == "newline":
                self._at += 1
            elif word == "[":
                table = self._header(line)
            else:
                self._pair(table)

    def _header(self, line: int) -> KeyPath:
        """`[a.b]`, or `[[a.b]]`, which is one more element of an array."""
        self._at += 1
        is_array = self._tokens[self._at][1] == "["
        self._at += is_array
        table = self._resolve((), self._key())
        self._at += 1 + is_array
        if is_array:
            place = self._sizes.get(table, 0)
            self._sizes[table] = place + 1
            self._lines.setdefault(table, line)
            table = (*table, place)
        self._note(table, line)
        return table

    def _pair(self, table: KeyPath) -> None:
        line = self._tokens[self._at][2]
        path = self._resolve(table, self._key())
        self._at += 1  # the equals sign
        self._note(path, line)
        self._value(path)

    def _key(self) -> list[str]:
        """A key, dotted or not; leaves the reader behind it."""
        parts = []
        while True:
            kind, word, _ = self._tokens[self._at]
            parts.append(next(iter(tomllib.loads(f"{word} = 0"))) if kind == "string" else word)
            self._at += 1
            if self._tokens[self._at][1] != ".":
                return parts
            self._at += 1

    def _resolve(self, table: KeyPath, key: list[str]) -> KeyPath:
        """The path of a key below a table; of an array of tables its last element is meant."""
        for part in key[:-1]:
            table = (*table, part)
            if table in self._sizes:
                table = (*table, self._sizes[table] - 1)
        return (*table, key[-1])

    def _note(self, path: KeyPath, line: int) -> None:
        # Keys in front of a dot stand on the same line, unless they have had one before.
        for length in range(1, len(path)):
            self._lines.setdefault(path[:length], line)
        self._lines[path] = line

    def _value(self, path: KeyPath) -> None:
        mark = self._tokens[self._at][1]
        self._at += 1
        if mark == "[":
            self._array(path)
        elif mark == "{":
            while self._next() != "}":
                self._pair(path)
        else:  # a number may have a dot, and a date a dot and a space
            while self._at < len(self._tokens) and (
                self._tokens[self._at][0] == "word" or self._tokens[self._at][1] == "."
            ):
                self._at += 1

    def _array(self, path: KeyPath) -> None:
        place = 0
        while self._next() != "]":
            self._lines[*path, place] = self._tokens[self._at][2]
            self._value((*path, place))
            place += 1

    def _next(self) -> str:
        """The next token inside of brackets that is no comma and no line end; a closing bracket is passed."""
        while self._tokens[self._at][1] in (",", "\n"):
            self._at += 1
        word = self._tokens[self._at][1]
        self._at += word in ("]", "}")
        return word


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or ""
        if kind not in ("comment", "space"):
            yield kind, found[0], line
        line += found[0].count("\n")
