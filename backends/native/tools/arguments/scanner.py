"""Finds where brackets close, in text that arrives in pieces. Each character is looked at once."""

from __future__ import annotations

import re


class Scanner:
    """Counts brackets outside of quotes, and stops at those that close.

    `place` is how far the text has been scanned. Whoever removes text in front of it lowers `place` by as much.

    Args:
        quotes: the quotation marks; each begins and ends a quoted text.
        escapes: whether a backslash in a quoted text takes the next character with it.
        stops: further marks to stop at, outside of all brackets.
        ends_at: the depth at which a closing bracket counts: 0 closes what opened here, -1 what opened before.
    """

    __slots__ = ("_depth", "_ends_at", "_escapes", "_longest", "_marks", "_quote", "_quotes", "place")

    def __init__(
        self, quotes: tuple[str, ...] = ('"',), *, escapes: bool = True, stops: str = "", ends_at: int = 0
    ) -> None:
        self._marks = re.compile("|".join(map(re.escape, quotes)) + rf"|[\\{{}}\[\](){re.escape(stops)}]")
        self._quotes = quotes
        self._longest = max(map(len, quotes))
        self._escapes = escapes
        self._ends_at = ends_at
        self._depth = 0
        self._quote = ""
        self.place = 0

    def scan(self, text: str) -> str | None:
        """The next mark to stop at, with `place` behind it; None if the text has none yet."""
        # Only marks matter, so the regex engine skips all other characters.
        while mark := self._marks.search(text, self.place):
            found = mark[0]
            if found == "\\" and self._quote and self._escapes:
                if mark.end() == len(text):  # the escaped character has not arrived
                    self.place = mark.start()
                    return None
                self.place = mark.end() + 1
                continue
            self.place = mark.end()
            if self._stops_at(found):
                return found
        # What may be the beginning of a long quotation mark is looked at again.
        self.place = max(self.place, len(text) - self._longest + 1)
        return None

    def _stops_at(self, mark: str) -> bool:
        if self._quote:
            self._quote = "" if mark == self._quote else self._quote
        elif mark in self._quotes:
            self._quote = mark
        elif mark in "{[(":
            self._depth += 1
        elif mark in "}])":
            self._depth -= 1
            return self._depth == self._ends_at
        else:
            return self._depth == 0 and mark != "\\"
        return False
