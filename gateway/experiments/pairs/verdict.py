"""The verdict over an arm's pairs, in one word and one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, exp, inf, isfinite
from typing import Literal

import msgspec

from gateway.experiments.pairs.bounded_mean import exact_bounds
from gateway.experiments.statistics.confidence import FEWEST_REQUESTS

SAME = 0.95
"""Answers are the same if, with confidence, at least this share of them is identical token by token."""

Word = Literal["same", "as good", "differs", "keep collecting"]


class Estimate(msgspec.Struct, frozen=True):
    """A mean over pairs with an interval that is valid at every look; null while there are too few pairs."""

    mean: float
    low: float
    high: float


class PairedVerdict(msgspec.Struct, frozen=True):
    """What pairs say of an arm.

    Attributes:
        word: "same": nearly all answers are identical. "as good": each model finds the answers of both as likely as the
            other does, within the margin. "differs": by more than the margin.
        reason: why, as a sentence.
        pairs_needed: about how many more pairs decide, if they go on like this; None: decided, or not known.
        caveat: what the pairs do not show; "" if nothing is known.
    """

    word: Word
    reason: str
    pairs_needed: int | None = None
    caveat: str = ""


def verdict(
    control: str,
    arm: str,
    pairs: int,
    unpaired: Mapping[str, int],
    identical: Estimate,
    differences: Sequence[Estimate],
    margin: float,
    alpha: float,
) -> PairedVerdict:
    """The verdict.

    Args:
        control: its name.
        arm: its name.
        pairs: how many were made.
        unpaired: how many were not, by reason.
        identical: the share of identical answers.
        differences: log-likelihood by the arm's model less by the control's, in nats per token: on the control's
            answers, and on the arm's.
        margin: a difference that counts as none.
        alpha: of each of these intervals.
    """
    caveat = _caveat(pairs, unpaired)
    clear = [found for found in differences if found.high < -margin or found.low > margin]
    if clear:
        of = control if clear[0] is differences[0] else arm
        return PairedVerdict("differs", f"On the answers of {of}: {_in_words(clear[0])}.", caveat=caveat)
    if identical.low >= SAME:
        return PairedVerdict("same", f"At least {identical.low:.1%} of the answers are identical.", caveat=caveat)
    if all(-margin <= found.low and found.high <= margin for found in differences):
        worst = max(differences, key=lambda found: max(-found.low, found.high))
        reason = f"Both models score the answers alike within {margin:g} nats per token: {_in_words(worst)}."
        return PairedVerdict("as good", reason, caveat=caveat)
    needed = _needed(pairs, identical, differences, margin, alpha)
    reason = "No pair was made yet." if not pairs else f"{pairs} pairs do not decide yet."
    return PairedVerdict("keep collecting", reason, needed, caveat)


def _in_words(found: Estimate) -> str:
    """A difference as a user reads it."""
    return (
        f"{found.mean:+.4f} nats per token ({found.low:+.4f} to {found.high:+.4f}), a perplexity of "
        f"{exp(-found.mean):.3f} times the control's"
    )


def _caveat(pairs: int, unpaired: Mapping[str, int]) -> str:
    dropped, drawn = unpaired.get("dropped", 0), pairs + sum(unpaired.values())
    if not dropped:
        return ""
    return (
        f"{dropped} of {drawn} drawn answers were not paired because pairs were running already or the arm could not "
        "answer. That happens under load, so it is not random: the pairs say less about busy times."
    )


def _needed(
    pairs: int, identical: Estimate, differences: Sequence[Estimate], margin: float, alpha: float
) -> int | None:
    """About how many more pairs decide."""
    if not pairs:
        return None
    same = _identical_needed(alpha) - pairs if identical.mean == 1 else inf
    known = [found for found in differences if isfinite(found.low)]
    if len(known) < len(differences):
        # Without an interval nothing can be extrapolated: it comes at this many pairs.
        return int(same) if same < inf else max(1, FEWEST_REQUESTS - pairs) if pairs < FEWEST_REQUESTS else None
    # A width shrinks with the root of the pairs, and must become the distance to the margin.
    ratios = [(found.high - found.mean) / max(1e-9, abs(margin - abs(found.mean))) for found in known]
    outside = [ratio for ratio, found in zip(ratios, known, strict=True) if abs(found.mean) > margin]
    likelihoods = pairs * ((min(outside) if outside else max(ratios)) ** 2 - 1)
    needed = min(same, likelihoods)
    return max(1, ceil(needed)) if needed < 1e9 else None


def _identical_needed(alpha: float) -> int:
    """How many pairs, all identical, are "same"."""
    few, many = 1, 2
    while exact_bounds(1.0, many, alpha)[0] < SAME:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if exact_bounds(1.0, middle, alpha)[0] >= SAME else (middle, many)
    return many
