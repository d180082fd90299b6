"""The verdict on an experiment: its word, its reason, and what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.experiments.report import ArmReport, Report
from gateway.experiments.statistics.comparison import Comparison, Decision
from gateway.rollout.verdict import verdict

DAY = 86400.0


def compared(metric: str, decision: Decision, arm: str = "b", **fields: Any) -> Comparison:
    given = {"relative": 0.1, "alpha": 0.01, "control_requests": 900, "requests": 100} | fields
    return Comparison(arm, metric, 0.02, -0.01, 0.05, decision, **given)


def report(*comparisons: Comparison, mismatch: bool = False, stopped: int = 0) -> Report:
    names = dict.fromkeys(["a", *(each.arm for each in comparisons)])
    arms = tuple(ArmReport(name, 50, 500, {}, {}, {"stopped": stopped if name == "b" else 0}) for name in names)
    return Report("chat", "a", 0.05, arms, comparisons, mismatch, (), primary=("success", "latency"))


def word_and_reason(found: Report) -> tuple[str, str]:
    said = verdict(found, 0.0, DAY)
    assert said is not None
    return said.word, said.reason


ALIKE = (compared("success", "no difference"), compared("latency", "no difference"))
OPEN = compared("thumbs", "keep collecting", requests_needed=12000, reason="too few")


@pytest.mark.parametrize(
    ("found", "word", "reason"),
    [
        (
            report(*ALIKE, OPEN),
            "no worse",
            "b is no worse than a by success and latency; about 12,000 more requests for thumbs.",
        ),
        (
            report(ALIKE[0], compared("latency", "better", relative=-0.2)),
            "better",
            "b is better than a by latency (-20.0%).",
        ),
        (
            report(*ALIKE, compared("refused", "worse")),
            "stop",
            "b is worse than a by refused (+0.02).",
        ),
        (
            report(compared("success", "keep collecting", reason="too few", requests_needed=500), ALIKE[1]),
            "keep collecting",
            "Success: too few; about 500 more requests for success.",
        ),
        (
            report(
                compared("success", "keep collecting", reason="too few"),
                compared("latency", "keep collecting", reason="too few"),
            ),
            "keep collecting",
            "Success and latency: too few.",
        ),
        (report(*ALIKE, mismatch=True), "do not trust", "The arms' requests contradict the split"),
        (report(*ALIKE, stopped=1), "stop", "A guardrail has stopped b."),
        # Longer answers are neither good nor bad.
        (report(*ALIKE, compared("completion_tokens", "higher")), "no worse", "b is no worse"),
    ],
)
def test_words_and_reasons(found: Report, word: str, reason: str) -> None:
    said = word_and_reason(found)
    assert (said[0], said[1].startswith(reason)) == (word, True), said


def test_the_most_urgent_arm_speaks_for_the_experiment() -> None:
    worse = (compared("success", "worse", "c"), compared("latency", "no difference", "c"))
    said = verdict(report(*ALIKE, *worse), 0.0, DAY)
    assert said is not None
    assert (said.word, [(arm.arm, arm.word) for arm in said.arms]) == ("stop", [("b", "no worse"), ("c", "stop")])


def test_what_is_needed_in_requests_and_days() -> None:
    said = verdict(report(*ALIKE, OPEN), 0.0, DAY)  # 1000 requests of both arms a day
    assert said is not None
    (arm,) = said.arms
    assert (arm.requests_needed, arm.days_needed) == ({"thumbs": 12000}, {"thumbs": 12.0})
    assert arm.requests["success"] == 1000
    # More than half the interval, which is where a difference begins to be seen at all.
    assert 0.03 < arm.detectable["success"] < 0.04


def test_there_is_no_verdict_without_a_challenger() -> None:
    assert verdict(report(), 0.0, DAY) is None
