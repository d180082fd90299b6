"""`best_of`: of more candidates than were asked for, the likeliest. Nothing can be told before all have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.ir import Delta


def winners(deltas: Sequence[Delta], *, n: int, best_of: int) -> list[Delta]:
    """The deltas of the `n` best of each prompt's `best_of` candidates, as choices, a prompt's best first.

    Args:
        deltas: of all candidates; candidate `p * best_of + i` is the i-th for prompt p. Tokens tell their
            log-probabilities, whose mean decides.
        n: how many are wanted.
        best_of: how many there are.
    """
    candidates: defaultdict[int, list[Delta]] = defaultdict(list)
    for delta in deltas:
        candidates[delta.choice].append(delta)
    ranked = sorted(candidates, key=lambda index: (index // best_of, -_mean_logprob(candidates[index])))
    return [
        replace(delta, choice=place // best_of * n + place % best_of)
        for place, index in enumerate(ranked)
        if place % best_of < n
        for delta in candidates[index]
    ]


def _mean_logprob(deltas: Sequence[Delta]) -> float:
    told = [token.logprob for delta in deltas for token in delta.tokens if token.logprob is not None]
    return sum(told) / len(told) if told else 0.0
