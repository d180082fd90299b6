"""Prompt updates, by hand-written expectations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backends.native.multimodal.updates import (
    PlaceholderMissing,
    PromptInsertion,
    PromptReplacement,
    PromptUpdate,
    PromptUpdateDetails,
    apply_updates,
)


def tens(index: int) -> Sequence[int]:
    return [10 * (index + 1)] * (index + 1)


def replacing(*target: int) -> PromptUpdate:
    return PromptReplacement("image", target, tens)


def inserting(*target: int) -> PromptUpdate:
    return PromptInsertion("image", target, tens)


TABLE = {
    "replaced": ([1, 9, 2], replacing(9), 1, [1, 10, 2], [1]),
    "in order": ([9, 1, 9], replacing(9), 2, [10, 1, 20, 20], [0, 2]),
    "neighbours": ([9, 9], replacing(9), 2, [10, 20, 20], [0, 1]),
    "more targets than items": ([9, 1, 9], replacing(9), 1, [10, 1, 9], [0]),
    "a run of tokens": ([1, 8, 9, 9], replacing(8, 9), 1, [1, 10, 9], [1]),
    "overlapping targets": ([9, 9, 9], replacing(9, 9), 1, [10, 9], [0]),
    "no items": ([9, 1], replacing(9), 0, [9, 1], []),
    "at the start": ([1, 2], inserting(), 2, [10, 20, 20, 1, 2], [0, 1]),
    "after a target": ([1, 2, 1], inserting(1), 1, [1, 10, 2, 1], [1]),
    "into nothing": ([], inserting(), 1, [10], [0]),
}


@pytest.mark.parametrize(("ids", "update", "count", "expected", "offsets"), TABLE.values(), ids=TABLE)
def test_updates(ids: list[int], update: PromptUpdate, count: int, expected: list[int], offsets: list[int]) -> None:
    updated, placed = apply_updates(ids, [update], {"image": count}, list)
    assert updated == expected
    assert [place.offset for place in placed] == offsets


@pytest.mark.parametrize(
    ("ids", "update", "count"),
    [([1], replacing(9), 1), ([9], replacing(9), 2), ([9, 9, 9], replacing(9, 9), 2), ([1], inserting(2), 1)],
)
def test_a_missing_placeholder(ids: list[int], update: PromptUpdate, count: int) -> None:
    with pytest.raises(PlaceholderMissing):
        apply_updates(ids, [update], {"image": count}, list)


def test_selected_tokens() -> None:
    details = PromptUpdateDetails.select_token_id([7, 7, 3, 7], 7)
    _, (placed,) = apply_updates([9], [PromptReplacement("image", (9,), details)], {"image": 1}, list)
    assert placed.details.is_embed == (True, True, False, True)


def test_of_several_updates_the_one_that_matches_first_is_taken() -> None:
    updates = [PromptReplacement("image", [8, 8], [1, 1]), PromptReplacement("image", [9], [2])]
    assert apply_updates([9, 5, 8, 8, 9], updates, {"image": 3}, list)[0] == [2, 5, 1, 1, 2]
    inserted = [PromptInsertion("image", [], [3]), PromptReplacement("image", [9], [2])]
    assert apply_updates([9], inserted, {"image": 2}, list)[0] == [3, 3, 9]


def test_each_modality_has_updates_of_its_own() -> None:
    updates = [PromptReplacement("image", [8], [1, 1]), PromptReplacement("video", [9], [2])]
    ids, placed = apply_updates([9, 8, 9], updates, {"image": 1, "video": 2}, list)
    assert ids == [2, 1, 1, 2]
    assert [(place.modality, place.offset) for place in placed] == [("video", 0), ("image", 1), ("video", 3)]


def test_texts_are_encoded() -> None:
    updates = [PromptReplacement("image", "b", "cd")]
    assert apply_updates([ord("a"), ord("b")], updates, {"image": 1}, lambda text: [ord(each) for each in text])[0] == [
        *b"acd"
    ]
