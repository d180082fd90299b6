"""Selection of the best candidates."""

from __future__ import annotations

from backends.detokenization.best_of import winners
from schemas.ir import Delta, Token


def candidate_deltas(candidate: int, logprob: float) -> list[Delta]:
    return [
        Delta(candidate, "a", (Token(1, "a", logprob + 0.5),)),
        Delta(candidate, "b", (Token(2, "b", logprob - 0.5),)),
    ]


def test_the_most_probable_candidates_of_each_prompt_come_first_and_are_renumbered() -> None:
    scores = [-3.0, -1.0, -2.0, -1.5, -9.0, -0.5]
    interleaved = [delta for pair in zip(*map(candidate_deltas, range(6), scores), strict=True) for delta in pair]
    best = winners(interleaved, n=2, best_of=3)
    assert [(delta.choice, delta.tokens[0].logprob) for delta in best] == [
        *[(0, -0.5)] * 1, (0, -1.5), (1, -1.5), (1, -2.5), (2, 0.0), (2, -1.0), (3, -1.0), (3, -2.0),
    ]  # fmt: skip
