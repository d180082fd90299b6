"""Agreement metrics of paired answers: two arms, one prompt, one seed. Of one pair, and summarized over many.

Pure arithmetic. Tokens are compared by id, so both arms must have the same vocabulary. A log-likelihood is the mean
natural logarithm of the probabilities of an answer's tokens, before temperature and all logits processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import exp, inf, nan
from typing import NamedTuple, Protocol

import msgspec

from gateway.experiments.metrics import DIVERGENCES, UNPAIRED
from gateway.experiments.pairs.bounded_mean import bounded_mean
from gateway.experiments.pairs.verdict import Estimate, PairedVerdict, verdict
from gateway.experiments.statistics.confidence import Array, mean, radius

Ids = tuple[int, ...]

PAIR_METRICS = (
    "identical",
    "token_agreement",
    "top_token_agreement",
    "control_by_control",
    "control_by_arm",
    "control_difference",
    "arm_by_control",
    "arm_by_arm",
    "arm_difference",
    "control_tokens",
    "control_time_to_first_token",
    "control_inter_token_latency",
    "arm_tokens",
    "arm_time_to_first_token",
    "arm_inter_token_latency",
)
"""A pair's metrics, in the order of the counters. `control_by_arm`: the control's answer under the arm's model."""

_VERDICT_METRICS = ("identical", "control_difference", "arm_difference")
"""The verdict rests on these, so they share alpha."""


class Scores(NamedTuple):
    """One answer under one model: log-likelihood per token, and the model's most likely token at each position of the
    answer; () if it does not say.
    """

    log_likelihood: float
    top: Ids = ()


class Speed(NamedTuple):
    """How fast one answer came. Seconds; None: not known."""

    time_to_first_token: float | None = None
    inter_token_latency: float | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """One pair.

    Attributes:
        metrics: in the order of `PAIR_METRICS`; None: not known of this pair.
        divergence: an index of `DIVERGENCES`.
    """

    metrics: tuple[float | None, ...]
    divergence: int

    @property
    def largest_difference(self) -> float:
        """The larger of the two differences of log-likelihoods, in nats per token."""
        return max(self.value("control_difference"), self.value("arm_difference"), key=abs)

    def value(self, name: str) -> float:
        """A metric that every pair has."""
        found = self.metrics[PAIR_METRICS.index(name)]
        assert found is not None
        return found


class LogLikelihoods(msgspec.Struct, frozen=True):
    """Per token of one arm's answers, in nats, under the control's model and under the arm's.

    Attributes:
        answers_of: the arm that gave the answers.
        difference: by the arm's model less by the control's, pair by pair.
        perplexity_factor: the arm's perplexity on these answers as a multiple of the control's: `exp(-difference)`.
    """

    answers_of: str
    by_control: Estimate
    by_arm: Estimate
    difference: Estimate
    perplexity_factor: Estimate


class PairedSpeed(msgspec.Struct, frozen=True):
    """Length and speed of one arm's answers to the paired prompts. Seconds.

    The control's are its answers to clients, the arm's are background work: of lower priority in a busy engine.
    """

    answers_of: str
    tokens: Estimate
    time_to_first_token: Estimate
    inter_token_latency: Estimate
    tokens_per_second: Estimate


class Example(msgspec.Struct, frozen=True):
    """A pair that differs much. The texts are "" unless the served entity's `paired.text` allows them."""

    request_id: str
    log_likelihood_difference: float
    token_agreement: float
    first_divergence: str
    prompt: str = ""
    control_answer: str = ""
    arm_answer: str = ""


class Pairs(msgspec.Struct, frozen=True):
    """Summary of an arm's pairs with the control, and why others could not be made.

    Attributes:
        verdict: what the pairs say by now.
        top_token_agreement: of the positions in the control's answers, the share at which both models, given the same
            tokens before, find the same token most likely.
        speeds: of the control and of the arm.
        examples: the pairs that differ most.
    """

    arm: str
    pairs: int
    verdict: PairedVerdict
    not_paired: dict[str, int]
    first_divergence: dict[str, int]
    identical: Estimate
    token_agreement: Estimate
    top_token_agreement: Estimate
    log_likelihoods: tuple[LogLikelihoods, LogLikelihoods]
    speeds: tuple[PairedSpeed, PairedSpeed]
    examples: tuple[Example, ...] = ()


def agreement(
    control: Ids,
    arm: Ids,
    by_control: tuple[Scores, Scores],
    by_arm: tuple[Scores, Scores],
    speeds: tuple[Speed, Speed] = (Speed(), Speed()),
) -> Agreement:
    """A pair's metrics.

    Args:
        control: the tokens of the control's answer.
        arm: the tokens of the arm's answer.
        by_control: these two answers under the control's model.
        by_arm: the same under the arm's model.
        speeds: of the control and of the arm.
    """
    same = [one == other for one, other in zip(control, arm, strict=False)]
    identical = control == arm
    place = sum(1 for _ in takewhile(bool, same))
    metrics = (
        float(identical),
        # By position, over the longer answer: tokens that one of them lacks count as different.
        sum(same) / max(len(control), len(arm)),
        _share_of_equal(by_control[0].top, by_arm[0].top),
        *_likelihoods(by_control[0], by_arm[0]),
        *_likelihoods(by_control[1], by_arm[1]),
        len(control),
        *speeds[0],
        len(arm),
        *speeds[1],
    )
    # `bit_length` is the bin: 0 -> 0, 1 -> 1, 2 and 3 -> 2, 4 to 7 -> 3. The last index is "never".
    return Agreement(metrics, len(DIVERGENCES) - 1 if identical else min(place.bit_length(), len(DIVERGENCES) - 2))


def summarize(
    control: str, arm: str, sums: Array, unpaired: Array, divergences: Array, alpha: float, margin: float
) -> Pairs:
    """Means, intervals and a verdict over an arm's pairs.

    Args:
        control: the control's name.
        arm: the arm's name.
        sums: [metrics, (counts, sums), buckets].
        unpaired: counts, in the order of `UNPAIRED`.
        divergences: counts, in the order of `DIVERGENCES`.
        alpha: the chance that an interval ever misses the mean; the intervals of the verdict share it.
        margin: a difference in nats per token that counts as none.
    """
    by_name = dict(zip(PAIR_METRICS, sums, strict=True))

    def found(name: str, least: float = -inf, most: float = inf) -> Estimate:
        share = alpha / len(_VERDICT_METRICS) if name in _VERDICT_METRICS else alpha
        return rate_estimate(by_name[name], share) if most == 1 else mean_estimate(by_name[name], share, least, most)

    pairs, identical = int(sums[0, 0].sum()), found("identical", 0, 1)
    likelihoods = (_log_likelihoods(control, "control", found), _log_likelihoods(arm, "arm", found))
    counts = _counts(UNPAIRED, unpaired)
    share = alpha / len(_VERDICT_METRICS)
    return Pairs(
        arm,
        pairs,
        verdict(control, arm, pairs, counts, identical, [of.difference for of in likelihoods], margin, share),
        counts,
        _counts(DIVERGENCES, divergences),
        identical,
        found("token_agreement", 0, 1),
        found("top_token_agreement", 0, 1),
        likelihoods,
        (_speed(control, "control", found), _speed(arm, "arm", found)),
    )


class _Find(Protocol):
    def __call__(self, name: str, least: float = -inf, most: float = inf) -> Estimate: ...


def _log_likelihoods(answers_of: str, role: str, found: _Find) -> LogLikelihoods:
    difference = found(f"{role}_difference")
    return LogLikelihoods(
        answers_of,
        found(f"{role}_by_control", most=0),
        found(f"{role}_by_arm", most=0),
        difference,
        Estimate(_exp(-difference.mean), _exp(-difference.high), _exp(-difference.low)),
    )


def _speed(answers_of: str, role: str, found: _Find) -> PairedSpeed:
    latency = found(f"{role}_inter_token_latency", least=0)
    return PairedSpeed(
        answers_of,
        found(f"{role}_tokens", least=0),
        found(f"{role}_time_to_first_token", least=0),
        latency,
        Estimate(*(1 / value if value else inf for value in (latency.mean, latency.high, latency.low))),
    )


def rate_estimate(metric: Array, alpha: float) -> Estimate:
    """A mean of values in [0, 1] with its bounds; the arguments are those of `mean_estimate`."""
    found = bounded_mean(metric[0], metric[1], alpha)
    return Estimate(found.estimate, found.low, found.high)


def mean_estimate(metric: Array, alpha: float, least: float = -inf, most: float = inf) -> Estimate:
    """A mean with its interval, within the range of its values.

    Args:
        metric: [(counts, sums), buckets].
        alpha: the chance that the interval ever misses the mean.
        least: no value is less.
        most: no value is more.
    """
    found = mean(*metric)
    if not found.requests:
        return Estimate(nan, -inf, inf)
    if not found.variance:  # all values are equal so far, which does not bound the next ones
        return Estimate(found.value, -inf, inf)
    width = radius(found.variance, found.requests, alpha)
    if width == inf:
        return Estimate(found.value, -inf, inf)
    return Estimate(found.value, max(least, found.value - width), min(most, found.value + width))


def _likelihoods(by_control: Scores, by_arm: Scores) -> tuple[float, float, float]:
    one, other = by_control.log_likelihood, by_arm.log_likelihood
    return one, other, other - one


def _share_of_equal(one: Ids, other: Ids) -> float | None:
    if not one or len(one) != len(other):  # a model did not say
        return None
    return sum(map(int.__eq__, one, other)) / len(one)


def _exp(value: float) -> float:
    """The exponential; infinite where it would overflow."""
    return exp(value) if value < 700 else inf


def _counts(names: Sequence[str], counts: Array) -> dict[str, int]:
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}
