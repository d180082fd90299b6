"""Agreement metrics of paired answers: two arms, one prompt, one seed. Of one pair, and summarized over many.

Pure arithmetic. Tokens are compared by id, so both arms must have the same vocabulary. A log-likelihood is the mean
natural logarithm of the probabilities of an answer's tokens, before temperature and all logits processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import inf, nan

import msgspec

from gateway.experiments.confidence import Array, mean, radius

Ids = tuple[int, ...]

UNPAIRED = ("dropped", "failed", "too_long", "unsuitable", "unlike_tokenizers")
"""Why a drawn answer made no pair: too many pairs at once, an error, over the token limit, not a single choice of plain
text, different vocabularies.
"""

PAIR_METRICS = (
    "identical",
    "token_agreement",
    "control_by_control",
    "control_by_arm",
    "control_difference",
    "arm_by_control",
    "arm_by_arm",
    "arm_difference",
)
"""A pair's metrics, in the order of the counters. `control_by_arm`: the control's answer under the arm's model."""

_LAST = 14  # 2**13 = 8192 tokens and more share the last bin
DIVERGENCES = ("0", "1", *(f"{2**n}-{2 ** (n + 1) - 1}" for n in range(1, _LAST - 1)), f"{2 ** (_LAST - 1)}+", "never")
"""Histogram bins: tokens that are the same before the first that differs, in powers of two."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One pair. `metrics` are in the order of `PAIR_METRICS`, `divergence` is an index of `DIVERGENCES`."""

    metrics: tuple[float, ...]
    divergence: int


class Estimate(msgspec.Struct, frozen=True):
    """A mean over pairs with an interval that is valid at every look; null while there are too few pairs."""

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
    """Summary of an arm's pairs with the control, and why others could not be made."""

    arm: str
    pairs: int
    not_paired: dict[str, int]
    first_divergence: dict[str, int]
    identical: Estimate
    token_agreement: Estimate
    log_likelihoods: tuple[LogLikelihoods, LogLikelihoods]


def agreement(control: Ids, arm: Ids, by_control: tuple[float, float], by_arm: tuple[float, float]) -> Agreement:
    """A pair's metrics.

    Args:
        control: the tokens of the control's answer.
        arm: the tokens of the arm's answer.
        by_control: the log-likelihoods of these two answers under the control's model.
        by_arm: the same under the arm's model.
    """
    same = [one == other for one, other in zip(control, arm, strict=False)]
    identical = control == arm
    place = sum(1 for _ in takewhile(bool, same))
    metrics = (
        float(identical),
        # By position, over the longer answer: tokens that one of them lacks count as different.
        sum(same) / max(len(control), len(arm)),
        by_control[0],
        by_arm[0],
        by_arm[0] - by_control[0],
        by_control[1],
        by_arm[1],
        by_arm[1] - by_control[1],
    )
    # `bit_length` is the bin: 0 -> 0, 1 -> 1, 2 and 3 -> 2, 4 to 7 -> 3. The last index is "never".
    return Agreement(metrics, len(DIVERGENCES) - 1 if identical else min(place.bit_length(), _LAST))


def summarize(control: str, arm: str, sums: Array, unpaired: Array, divergences: Array, alpha: float) -> Pairs:
    """Means and intervals over an arm's pairs.

    Args:
        control: the control's name.
        arm: the arm's name.
        sums: [metrics, (counts, sums), buckets].
        unpaired: counts, in the order of `UNPAIRED`.
        divergences: counts, in the order of `DIVERGENCES`.
        alpha: the chance that an interval ever misses the mean.
    """
    # Unpacks in the order of `PAIR_METRICS`: two, then three for each answer.
    identical, token_agreement, *likelihoods = (_estimate(metric, alpha) for metric in sums)
    return Pairs(
        arm,
        int(sums[0, 0].sum()),
        _counts(UNPAIRED, unpaired),
        _counts(DIVERGENCES, divergences),
        identical,
        token_agreement,
        (LogLikelihoods(control, *likelihoods[:3]), LogLikelihoods(arm, *likelihoods[3:])),
    )


def _estimate(metric: Array, alpha: float) -> Estimate:
    found = mean(*metric)
    if not found.requests:
        return Estimate(nan, -inf, inf)
    if not found.variance:  # all values are equal so far, which does not bound the next ones
        return Estimate(found.value, -inf, inf)
    width = radius(found.variance, found.requests, alpha)
    return Estimate(found.value, found.value - width, found.value + width)


def _counts(names: tuple[str, ...], counts: Array) -> dict[str, int]:
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}
