"""Finds stop strings in a growing text, across the boundaries of its pieces.

The result does not depend on how the text is cut into pieces: the match that is complete first wins, and the longest of
those that are complete at the same character.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Match(NamedTuple):
    """A match: the stop string begins `before` characters before the end of the text so far and ends `after` characters
    before it.
    """

    stop: str
    before: int
    after: int


class StopMatcher:
    """Matches stop strings against one growing text.

    `held` is the length of the longest end of the text that is the beginning of a stop string. All text before it can
    be sent to the client.

    Args:
        stops: the stop strings; empty ones are ignored.
    """

    __slots__ = ("_longest", "_stops", "_tail", "held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(filter(None, stops))  # sorted for `_is_prefix`
        self._longest = max(map(len, self._stops), default=0)
        self._tail = ""  # the end of the text that may still become a match
        self.held = 0

    def feed(self, text: str) -> Match | None:
        """Append to the text and return the first match. After a match nothing may be appended."""
        text = self._tail + text
        # The first occurrence of a stop string is also the one that is complete first, so `find` is enough.
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            # The smallest end wins; among equal ends the smallest start, which is the longest stop string.
            end, start, stop = min(found)
            return Match(stop, len(text) - start, len(text) - end)
        # Only the end that may still grow into a match is kept, so the cost of a piece does not grow with the text.
        self._tail = text[self._first_candidate(text) :]
        self.held = len(self._tail)
        return None

    def _first_candidate(self, text: str) -> int:
        """The start of the longest end of `text` that is the beginning of a stop string; `len(text)` without one."""
        # At most `longest - 1` characters can be open: a whole stop string would have matched.
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if self._is_prefix(text[start:]):
                return start
        return len(text)

    def _is_prefix(self, text: str) -> bool:
        """Whether a stop string begins with `text`: then the first one not below it in sorted order does."""
        # Strings that begin with `text` are neighbours in sorted order, and the first of them is the first one >=
        # `text`.
        place = bisect_left(self._stops, text)
        return place < len(self._stops) and self._stops[place].startswith(text)
