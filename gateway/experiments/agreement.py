"""How alike two arms' answers to one prompt from one seed are: the figures of a pair, and what many pairs tell.

Pure arithmetic. Tokens are compared by id, so both arms must have the same vocabulary. A log-likelihood is the mean
natural logarithm of an answer's tokens' probabilities, before temperature and all other processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import inf, nan

import msgspec

from gateway.experiments.confidence import Array, mean, radius

Ids = tuple[int, ...]

UNPAIRED = ("dropped", "failed", "too_long", "unsuitable", "unlike_tokenizers")
"""Why an answer that was drawn made no pair: no room, an error, over the limit of tokens, more than one plain text,
token ids that do not mean the same.
"""

FIGURES = (
    "identical",
    "token_agreement",
    "control_by_control",
    "control_by_arm",
    "control_difference",
    "arm_by_control",
    "arm_by_arm",
    "arm_difference",
)
"""A pair's figures, in the order of the counters: whose answer by whose model."""

_LAST = 14
DIVERGENCES = ("0", "1", *(f"{2**n}-{2 ** (n + 1) - 1}" for n in range(1, _LAST - 1)), f"{2 ** (_LAST - 1)}+", "never")
"""How many tokens are the same before the first that is not, in powers of two."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """One pair. `figures` are in the order of `FIGURES`, `divergence` is an index of `DIVERGENCES`."""

    figures: tuple[float, ...]
    divergence: int


class Estimate(msgspec.Struct, frozen=True):
    """A mean over pairs, with an interval that holds however often one looks; null while nothing can be said."""

    mean: float
    low: float
    high: float


class LogLikelihoods(msgspec.Struct, frozen=True):
    """Per token of one arm's answers, under the control's model and under the arm's. `difference` is the latter less
    the former, pair by pair.
    """

    answers_of: str
    by_control: Estimate
    by_arm: Estimate
    difference: Estimate


class Pairs(msgspec.Struct, frozen=True):
    """What an arm's pairs with the control tell, and why others could not be made."""

    arm: str
    pairs: int
    not_paired: dict[str, int]
    first_divergence: dict[str, int]
    identical: Estimate
    token_agreement: Estimate
    log_likelihoods: tuple[LogLikelihoods, LogLikelihoods]


def likeness(control: Ids, arm: Ids, by_control: tuple[float, float], by_arm: tuple[float, float]) -> Likeness:
    """A pair's figures.

    Args:
        control: the tokens of the control's answer.
        arm: those of the other's.
        by_control: the log-likelihoods of these two answers under the control's model.
        by_arm: the same under the arm's.
    """
    same = [one == other for one, other in zip(control, arm, strict=False)]
    identical = control == arm
    place = sum(1 for _ in takewhile(bool, same))
    figures = (
        float(identical),
        sum(same) / max(len(control), len(arm)),
        by_control[0],
        by_arm[0],
        by_arm[0] - by_control[0],
        by_control[1],
        by_arm[1],
        by_arm[1] - by_control[1],
    )
    return Likeness(figures, len(DIVERGENCES) - 1 if identical else min(place.bit_length(), _LAST))


def summary(control: str, arm: str, sums: Array, unpaired: Array, divergences: Array, alpha: float) -> Pairs:
    """What an arm's pairs tell.

    Args:
        control: the control's name.
        arm: the arm's.
        sums: [figures, (counts, sums), buckets].
        unpaired: counts, in the order of `UNPAIRED`.
        divergences: counts, in the order of `DIVERGENCES`.
        alpha: the chance that an interval ever misses.
    """
    identical, agreement, *told = (_estimate(figure, alpha) for figure in sums)
    return Pairs(
        arm,
        int(sums[0, 0].sum()),
        _counts(UNPAIRED, unpaired),
        _counts(DIVERGENCES, divergences),
        identical,
        agreement,
        (LogLikelihoods(control, *told[:3]), LogLikelihoods(arm, *told[3:])),
    )


def _estimate(figure: Array, alpha: float) -> Estimate:
    found = mean(*figure)
    if not found.requests:
        return Estimate(nan, -inf, inf)
    if not found.variance:  # all alike so far: that says little of what is to come
        return Estimate(found.value, -inf, inf)
    width = radius(found.variance, found.requests, alpha)
    return Estimate(found.value, found.value - width, found.value + width)


def _counts(names: tuple[str, ...], counts: Array) -> dict[str, int]:
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}
