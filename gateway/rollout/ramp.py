"""When a ramp moves: from the report of the experiment, the time held, and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from gateway.config import Ramp
from gateway.experiments.report import Report
from gateway.experiments.statistics.comparison import Comparison
from gateway.rollout.verdict import NO_WORSE


class RampDecision(NamedTuple):
    """What to do now, and why."""

    move: Literal["hold", "advance", "roll_back"]
    reason: str


class RampStepReport(msgspec.Struct, frozen=True):
    """A step that was taken. `since`: Unix time in seconds."""

    traffic_percentage: int
    since: float
    reason: str


class RampReport(msgspec.Struct, frozen=True):
    """A ramp, as the report of its experiment shows it.

    Attributes:
        arm: whose share it raises.
        status: "waiting" before its first step, "running", "finished", "rolled_back", or "ended" by another change.
        steps: the shares.
        traffic_percentage: the arm's share now.
        next_percentage: of the next step; null: there is none.
        next_at: the earliest time of the next step, in Unix seconds; null: there is none.
        waits_for: what the next step waits for.
        history: all steps taken, the last one last.
    """

    arm: str
    status: str
    steps: tuple[int, ...]
    traffic_percentage: int
    next_percentage: int | None
    next_at: float | None
    waits_for: str
    history: tuple[RampStepReport, ...]


def decide(report: Report, ramp: Ramp, held: float) -> RampDecision:
    """What a running ramp does now.

    Intervals hold at every look, so looking often does not raise the chance of a false move.

    Args:
        report: of the ramp's experiment.
        ramp: as configured.
        held: seconds since its last step.
    """
    of = next(arm for arm in report.arms if arm.name == ramp.arm)
    if of.excluded.get("stopped"):
        return RampDecision("roll_back", "the guardrail has stopped it")
    found = [each for each in report.comparisons if each.arm == ramp.arm and each.metric in ramp.metrics]
    if worse := [each for each in found if each.decision == "worse"]:
        return RampDecision("roll_back", _in_words(report, worse))
    if held < ramp.hold:
        return RampDecision("hold", f"{ramp.hold - held:.0f} s of {ramp.hold:g} s")
    if of.exposures_in_split < ramp.hold_requests:
        return RampDecision("hold", f"{of.exposures_in_split} requests of {ramp.hold_requests}")
    undecided = [each for each in found if each.decision not in NO_WORSE]
    if undecided and ramp.advance == "no_worse":
        names = ", ".join(each.metric for each in undecided)
        return RampDecision("hold", f"more requests, to say that it is no worse by {names}")
    names = ", ".join(each.metric for each in found if each not in undecided)
    return RampDecision("advance", f"no worse than {report.control} by {names}" if names else "not worse")


def _in_words(report: Report, worse: Sequence[Comparison]) -> str:
    found = (f"{each.metric} {each.difference:+.3g} ({each.low:+.3g} to {each.high:+.3g})" for each in worse)
    return f"worse than {report.control} by {', '.join(found)}"
