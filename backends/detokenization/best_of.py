"""`best_of`: selects the candidates with the highest mean log-probability, once all of them have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.ir import Delta


def winners(deltas: Sequence[Delta], *, n: int, best_of: int) -> list[Delta]:
    """The deltas of the `n` best of each prompt's `best_of` candidates, renumbered as choices, the best first.

    Args:
        deltas: of all candidates; candidate `p * best_of + i` is the i-th of prompt p. Tokens without a log-probability
            do not count.
        n: choices per prompt.
        best_of: candidates per prompt.
    """
    # Every candidate has at least its `Finished`, so none is missing and each prompt has exactly `best_of` of them.
    candidates: defaultdict[int, list[Delta]] = defaultdict(list)
    for delta in deltas:
        candidates[delta.choice].append(delta)
    # By prompt, then the best first. The sort is stable: equal means keep the order in which candidates began.
    ranked = sorted(candidates, key=lambda index: (index // best_of, -_mean_logprob(candidates[index])))
    return [
        replace(delta, choice=place // best_of * n + place % best_of)
        for place, index in enumerate(ranked)
        if place % best_of < n
        for delta in candidates[index]
    ]


def _mean_logprob(deltas: Sequence[Delta]) -> float:
    logprobs = [token.logprob for delta in deltas for token in delta.tokens if token.logprob is not None]
    # The mean, not the sum, which would favour short answers. Without any log-probability: 0, the highest there is.
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
