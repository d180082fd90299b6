"""The verdict on an experiment: one word per challenger, its reason as a sentence, and what it still needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Literal

import msgspec

from gateway.experiments.metrics import METRICS
from gateway.experiments.report import Report
from gateway.experiments.statistics.comparison import Comparison
from gateway.experiments.statistics.confidence import boundary
from gateway.experiments.statistics.power import POWER_QUANTILE, days_until

NO_WORSE = ("better", "no difference")
"""Decisions after which an arm is no worse by a metric."""

_DAY = 86400.0

Word = Literal["stop", "better", "no worse", "keep collecting", "do not trust"]


class ArmVerdict(msgspec.Struct, frozen=True):
    """The verdict on one arm.

    Attributes:
        arm: its name.
        word: "stop": it is worse by a metric. "better": it is better by one, and no worse by all primary ones.
            "no worse": by these, within the margin. "do not trust": its requests contradict its share.
        reason: as a sentence.
        requests: behind each comparison, of the control and the arm together.
        requests_needed: about how many more decide, by metric, if the figures stay; null: not known.
        days_needed: the same as time, if the traffic stays.
        detectable: the least difference that is found with a power of 80 % after as many requests, by metric, in the
            metric's unit.
    """

    arm: str
    word: Word
    reason: str
    requests: dict[str, int]
    requests_needed: dict[str, int | None]
    days_needed: dict[str, float | None]
    detectable: dict[str, float]


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on an experiment: the word and the reason of its most urgent arm, and the verdicts on all."""

    word: Word
    reason: str
    arms: tuple[ArmVerdict, ...]


_URGENCY: tuple[Word, ...] = ("do not trust", "stop", "better", "no worse", "keep collecting")


def verdict(report: Report, since: float, now: float) -> Verdict | None:
    """The verdict on an experiment; None if it has a single arm that clients reach.

    Args:
        report: the experiment's.
        since: when its first request could be counted; Unix time in seconds.
        now: the time of the report.
    """
    names = dict.fromkeys(each.arm for each in report.comparisons)
    exposures = {arm.name: arm.exposures for arm in report.arms}
    # A shadow, or an arm that never had a share, is not to be judged by this.
    shadows = {shadow.arm for shadow in report.shadows}
    found = tuple(
        _arm(report, name, (exposures[name] + exposures[report.control]) / max(1.0, now - since) * _DAY)
        for name in names
        if name not in shadows
    )
    if not found:
        return None
    first = min(found, key=lambda each: _URGENCY.index(each.word))
    return Verdict(first.word, first.reason, found)


def _arm(report: Report, name: str, per_day: float) -> ArmVerdict:
    directed = {metric.name for metric in METRICS if metric.better is None}
    compared = [each for each in report.comparisons if each.arm == name]
    decisive = [each for each in compared if each.metric not in directed]
    needed = {each.metric: each.requests_needed for each in decisive if each.decision == "keep collecting"}
    word, reason = _word(report, name, decisive)
    return ArmVerdict(
        name,
        word,
        reason,
        {each.metric: each.control_requests + each.requests for each in compared},
        needed,
        {metric: None if more is None else days_until(more, per_day) for metric, more in needed.items()},
        {each.metric: size for each in compared if (size := _detectable(each)) is not None},
    )


def _word(report: Report, name: str, compared: Sequence[Comparison]) -> tuple[Word, str]:
    if report.sample_ratio_mismatch:
        return "do not trust", "The arms' requests contradict the split: some are lost, or counted twice."
    stopped = any(arm.excluded.get("stopped") for arm in report.arms if arm.name == name)
    if worse := [each for each in compared if each.decision == "worse"]:
        return "stop", f"{name} is worse than {report.control} by {_listed([_in_words(each) for each in worse])}."
    if stopped:
        return "stop", f"A guardrail has stopped {name}."
    settled = [each for each in compared if each.decision in NO_WORSE]
    waiting = _waiting([each for each in compared if each.decision == "keep collecting" and each.requests])
    if not {each.metric for each in settled}.issuperset(report.primary):
        reasons = {
            each.metric: each.reason for each in compared if each.metric in report.primary and each not in settled
        }
        return "keep collecting", f"{_undecided(reasons)}{waiting}."
    if better := [each for each in settled if each.decision == "better"]:
        listed = _listed([_in_words(each) for each in better])
        return "better", f"{name} is better than {report.control} by {listed}{waiting}."
    listed = _listed([each.metric for each in settled])
    return "no worse", f"{name} is no worse than {report.control} by {listed}{waiting}."


def _undecided(reasons: Mapping[str, str]) -> str:
    """Why the required metrics are not decided; one reason that all share is said once."""
    if len(set(reasons.values())) == 1:
        (reason,) = set(reasons.values())
        return f"{_capitalized(_listed(list(reasons)))}: {reason}"
    return _capitalized("; ".join(f"{metric}: {reason}" for metric, reason in reasons.items()))


def _waiting(undecided: Sequence[Comparison]) -> str:
    needed = [
        f"{each.requests_needed:,} more requests for {each.metric}"
        for each in undecided
        if each.requests_needed is not None
    ]
    return f"; about {_listed(needed)}" if needed else ""


def _detectable(found: Comparison) -> float | None:
    """The interval's own standard error says what the least detectable difference is."""
    count, half = found.control_requests + found.requests, (found.high - found.low) / 2
    if not count or not found.alpha or not isfinite(half):
        return None
    return half * (1 + POWER_QUANTILE / sqrt(boundary(count, found.alpha)))


def _in_words(found: Comparison) -> str:
    if found.relative is not None and found.metric not in _RATES:
        return f"{found.metric} ({found.relative:+.1%})"
    return f"{found.metric} ({found.difference:+.3g})"


_RATES = tuple(metric.name for metric in METRICS if metric.kind == "rate")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
