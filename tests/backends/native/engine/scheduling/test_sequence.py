"""A sequence's arithmetic: what is pending, which rows of logits a work returns, and what salts its cache blocks."""

from __future__ import annotations

from typing import Any

import pytest

from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Feature, Logprobs, Submit


def sequence(prompt: int = 6, generated: int = 0, arrival: int = 0, **fields: Any) -> Sequence:
    made = Sequence(0, Submit(0, tuple(range(prompt)), 4, **fields), arrival)
    made.tokens += range(100, 100 + generated)
    return made


def test_pending_is_the_difference_of_tokens_and_computed() -> None:
    s = sequence(6, generated=2)
    s.computed = 5
    assert (s.pending, s.generated, s.longest) == (3, 2, 10)


def test_greater_priority_sorts_first_and_then_earlier_arrival() -> None:
    low, early, late = sequence(arrival=0), sequence(arrival=1, priority=1), sequence(arrival=2, priority=1)
    assert sorted((late, low, early), key=lambda each: each.order) == [early, late, low]


@pytest.mark.parametrize(
    ("fields", "generated", "expected"),
    [
        ({}, 0, False),
        ({"prompt_logprobs": 0}, 0, True),
        ({"pool": True}, 0, True),
        ({"prompt_logprobs": 0}, 1, False),
    ],
)
def test_every_prompt_token_is_needed_only_until_the_first_output(
    fields: dict[str, Any], generated: int, expected: bool
) -> None:
    assert sequence(generated=generated, **fields).scores_prompt is expected


@pytest.mark.parametrize(
    ("fields", "count", "samples", "wanted"),
    [
        ({}, 1, True, 1),
        ({}, 4, True, 1),
        ({}, 4, False, 0),
        ({"prompt_logprobs": 0}, 4, False, 4),
        ({"prompt_logprobs": 0}, 1, False, 1),
    ],
)
def test_a_work_returns_the_last_row_or_all_rows_of_a_scored_prompt(
    fields: dict[str, Any], count: int, samples: bool, wanted: int
) -> None:
    assert Work(sequence(**fields), 0, count, samples).wanted == wanted


def test_a_work_has_the_tokens_of_its_span() -> None:
    s = sequence(4, generated=1)
    assert list(Work(s, 1, 3, samples=False).tokens) == [1, 2, 3]
    assert list(Work(s, 0, 5, samples=True).tokens) == [0, 1, 2, 3, 100]


def test_block_extra_names_the_images_of_a_block_and_their_offset_in_it() -> None:
    first, second = Feature(b"one", 2, 3, b"", ()), Feature(b"two", 5, 1, b"", ())
    s = sequence(8, features=(first, second))
    assert s.block_extra(0, 2) == b""
    assert s.block_extra(0, 4) == b"one" + (2).to_bytes(8, "big")
    assert s.block_extra(4, 8) == b"one" + (-2).to_bytes(8, "big", signed=True) + b"two" + (1).to_bytes(8, "big")


def test_a_preempted_sequence_keeps_its_tokens_and_drops_what_was_computed() -> None:
    s = sequence(6, generated=2)
    s.blocks.extend([3, 4])
    s.computed, s.cached_tokens = 7, 4
    s.prompt_logprobs.append(Logprobs(-1.0))
    s.forget_computed()
    assert (len(s.tokens), s.computed, len(s.blocks), s.prompt_logprobs, s.hidden_sum) == (8, 0, 0, [], None)
    assert s.cached_tokens == 4, "counted once, at the first admission"
