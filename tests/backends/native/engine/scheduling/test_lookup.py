"""Drafts by lookup: the longest earlier match, and what followed it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.native.engine.scheduling.lookup import LONGEST_MATCH, REALIGNED, Lookup


def find(tokens: list[int], most: int = 4) -> tuple[list[int], int]:
    return Lookup().find(tokens, most)


def test_a_text_without_a_repeated_pair_has_no_drafts() -> None:
    assert find([]) == find([1]) == find([1, 2]) == find([1, 2, 3, 2]) == ([], 0)


def test_drafts_are_what_followed_the_last_tokens_before() -> None:
    assert find([1, 2, 3, 4, 5, 9, 1, 2]) == ([3, 4, 5, 9], 2)
    assert find([1, 2, 3, 4, 5, 9, 1, 2], most=1) == ([3], 2)


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    assert find([7, 1, 2, 3, 1, 2, 4, 7, 1, 2], most=1) == ([3], 3)
    assert find([1, 2, 3, 1, 2, 4, 1, 2], most=1) == ([4], 2)


def test_a_periodic_text_goes_on_repeating_itself() -> None:
    assert find([5, 5, 5], most=4) == ([5, 5, 5, 5], 2)
    assert find([1, 2, 3, 1, 2, 3, 1, 2], most=5)[0] == [3, 1, 2, 3, 1]


def test_a_match_is_measured_up_to_a_bound() -> None:
    assert find([*range(40), *range(30)])[1] == LONGEST_MATCH


SOURCE = [50, *range(1, 30)]


@pytest.mark.parametrize(
    ("edit", "drafts"),
    [
        pytest.param([90, 9], [10, 11], id="8 is replaced"),
        pytest.param([90, 91, 8], [9, 10], id="two tokens are inserted"),
        pytest.param([10], [11, 12], id="8 and 9 are left out"),
        pytest.param([90, 91], [], id="nothing of it yet"),
        pytest.param([90, 40], [], id="what stands far behind"),
        pytest.param([*range(90, 108), 8], [], id="too late"),
    ],
)
def test_behind_an_edit_one_token_is_enough(edit: list[int], drafts: list[int]) -> None:
    text = [*SOURCE, *range(30, 45), 60, 5, 6]
    lookup = Lookup()
    assert lookup.find(text, 2) == ([7, 8], 2)
    text.append(7)
    assert lookup.find(text, 2) == ([8, 9], 3)
    for token in edit:
        text.append(token)
        found = lookup.find(text, 2)
    assert found == (drafts, REALIGNED if drafts else 0)
    if drafts:  # from there on it is copied again
        text += drafts
        assert lookup.find(text, 1) == ([drafts[1] + 1], 3)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_a_growing_text_gets_the_drafts_of_a_new_lookup(tokens: list[int], most: int) -> None:
    """But where it is realigned: a new one does not know what was copied."""
    lookup = Lookup()
    for end in range(len(tokens) + 1):
        drafts, matched = lookup.find(tokens[:end], most)
        assert (drafts, matched) == find(tokens[:end], most) or (matched == REALIGNED and not find(tokens[:end])[1])
        assert len(drafts) == (most if matched else 0)
        if matched:
            suffix = tokens[end - matched : end]
            starts = [at for at in range(end - matched) if tokens[at : at + matched] == suffix]
            assert any(tokens[at + matched] == drafts[0] for at in starts)
