"""Removal of stop sequences: the text held back and the text removed, for any split into tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.tgi.stops import StopCutter, cut, visible
from schemas.ir import Token


def tokens(*texts: str) -> list[Token]:
    return [Token(at, text) for at, text in enumerate(texts)]


def test_only_a_possible_beginning_of_a_stop_sequence_is_held_back() -> None:
    cutter = StopCutter(("END", "\n\n"))
    fed = [visible(cutter.feed(token)) for token in tokens("a", "b E", "N", "x", "\n", "y")]
    assert fed == ["a", "", "", "b ENx", "", "\ny"]


@pytest.mark.parametrize(
    ("stops", "texts", "kept", "stop"),
    [
        (("END",), ("a E", "ND"), "a ", "END"),
        (("END",), ("a END",), "a ", "END"),
        (("D", "END"), ("a E", "ND"), "a ", "END"),
        (("END",), ("a E", "N"), "a EN", None),
        (("aa",), ("a", "a", "a"), "a", "aa"),
        (("END",), ("END",), "", "END"),
    ],
)
def test_a_stop_sequence_is_removed_from_the_end(
    stops: tuple[str, ...], texts: tuple[str, ...], kept: str, stop: str | None
) -> None:
    cutter = StopCutter(stops)
    out = [free for token in tokens(*texts) for free in cutter.feed(token)]
    rest, matched = cutter.end(stopped=True)
    assert (visible([*out, *rest]), matched) == (kept, stop)
    assert [token.id for token in [*out, *rest]] == list(range(len(texts)))


def test_text_like_a_stop_sequence_stays_if_generation_did_not_stop_at_it() -> None:
    cutter = StopCutter(("END",))
    held = cutter.feed(Token(1, "END"))
    rest, stop = cutter.end(stopped=False)
    assert (held, visible(rest), stop) == ([], "END", None)


def test_special_tokens_are_no_text() -> None:
    end = Token(2, "</s>", special=True)
    assert cut([Token(1, "ab"), end], 1) == [Token(1, "a"), end]
    assert visible([Token(1, "ab"), end]) == "ab"


@given(
    text=st.text("ab ", max_size=20),
    stop=st.text("ab", min_size=1, max_size=4),
    cuts=st.sets(st.integers(0, 24)),
)
def test_a_stop_sequence_is_removed_for_any_split_into_tokens(text: str, stop: str, cuts: set[int]) -> None:
    whole = text + stop
    edges = sorted({0, len(whole)} | {at for at in cuts if at < len(whole)})
    cutter = StopCutter((stop,))
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    out: list[Token] = []
    for token in tokens(*pieces):
        out += cutter.feed(token)
        assert text.startswith(visible(out))
    rest, matched = cutter.end(stopped=True)
    assert matched == stop
    assert visible([*out, *rest]) == text
    assert len([*out, *rest]) == len(pieces)
