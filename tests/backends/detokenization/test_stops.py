"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.detokenization.stops import Match, StopMatcher

texts = st.text("ab. 漢", max_size=24)
stops = st.lists(st.text("ab. 漢", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def reference(text: str, stops: tuple[str, ...]) -> tuple[int, int, str] | None:
    """(end, start, stop) of the match that is complete first, by brute force over all beginnings of the text."""
    for end in range(len(text) + 1):
        found = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            start, stop = min(found)
            return end, start, stop
    return None


def cut(text: str, places: set[int]) -> list[str]:
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(texts, stops, st.sets(st.integers(1, 24)))
@example("aab", ("ab", "aac"), {1, 2})
def test_any_split_finds_the_match_of_the_whole_text(text: str, stops: tuple[str, ...], places: set[int]) -> None:
    matcher = StopMatcher(stops)
    seen = ""
    for piece in cut(text, places):
        seen += piece
        match = matcher.feed(piece)
        if match is not None:
            assert reference(seen, stops) == (len(seen) - match.after, len(seen) - match.before, match.stop)
            return
        assert reference(seen, stops) is None
        holds = (
            size
            for size in range(len(seen) + 1)
            if any(len(s) > size and s.startswith(seen[len(seen) - size :]) for s in stops)
        )
        assert matcher.held == max(holds), "only what could still match is held back"


@pytest.mark.parametrize(
    ("pieces", "stops", "held", "match"),
    [
        (["Hel", "lo"], ("x",), [0, 0], None),
        (["ST", "OP"], ("STOP",), [2, 2], Match("STOP", 4, 0)),
        (["a STO", "STOP b"], ("STOP",), [3, 3], Match("STOP", 6, 2)),
        (["abc"], ("bc", "abc"), [0], Match("abc", 3, 0)),
        (["abcd"], ("bcd", "b"), [0], Match("b", 3, 2)),
        (["anything"], ("",), [0], None),
    ],
)
def test_matches_and_what_is_held_back(
    pieces: list[str], stops: tuple[str, ...], held: list[int], match: Match | None
) -> None:
    matcher = StopMatcher(stops)
    for piece, expected in zip(pieces, held, strict=True):
        found = matcher.feed(piece)
        assert matcher.held == expected
    assert found == match
