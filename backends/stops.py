"""Stop strings, found across token boundaries. No tokens here: text in, what is certain of it out.

The result must not depend on how the text was cut into pieces, so the match that is complete first wins; of those that
are complete at the same character, the longest.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Match(NamedTuple):
    """A stop string was completed. The last `before` characters of the text so far begin with it, the last `after`
    follow it.
    """

    stop: str
    before: int
    after: int


class StopMatcher:
    """Watches one growing text.

    `held` counts the characters at the text's end that may still become a stop string; what stands before them never
    will.

    Args:
        stops: the stop strings; empty ones match nothing.
    """

    __slots__ = ("_longest", "_stops", "_tail", "held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(filter(None, stops))
        self._longest = max(map(len, self._stops), default=0)
        self._tail = ""
        self.held = 0

    def feed(self, text: str) -> Match | None:
        """Append to the text; the first match, after which nothing may be fed."""
        text = self._tail + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            return Match(stop, len(text) - start, len(text) - end)
        self._tail = text[self._first_candidate(text) :]
        self.held = len(self._tail)
        return None

    def _first_candidate(self, text: str) -> int:
        """Where the longest end of `text` starts that a stop string begins with."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if self._begins_a_stop(text[start:]):
                return start
        return len(text)

    def _begins_a_stop(self, text: str) -> bool:
        place = bisect_left(self._stops, text)
        return place < len(self._stops) and self._stops[place].startswith(text)
