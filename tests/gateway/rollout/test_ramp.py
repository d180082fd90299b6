"""What a ramp does, by its experiment's report and the time that it has held."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config import Ramp
from gateway.experiments.report import ArmReport, Report
from gateway.experiments.statistics.comparison import Comparison, Decision
from gateway.rollout.ramp import decide


def report(stopped: int = 0, **decisions: Decision) -> Report:
    comparisons = tuple(Comparison("b", metric, -0.1, -0.2, -0.05, decision) for metric, decision in decisions.items())
    arms = (ArmReport("a", 90, 900, {}, {}, {}), ArmReport("b", 10, 100, {}, {}, {"stopped": stopped}))
    return Report("chat", "a", 0.05, arms, comparisons, False, ())


@pytest.mark.parametrize(
    ("found", "held", "move"),
    [
        (report(success="no difference", latency="better"), 60, "advance"),
        (report(success="no difference", latency="better"), 59, "hold"),
        (report(success="no difference", latency="keep collecting"), 600, "hold"),
        (report(success="no difference", latency="worse"), 1, "roll_back"),
        (report(success="no difference", latency="better", completion_tokens="higher"), 60, "advance"),
        (report(1, success="no difference", latency="better"), 60, "roll_back"),
    ],
)
def test_moves(found: Report, held: float, move: str) -> None:
    assert decide(found, Ramp(arm="b", hold=60), held).move == move


def test_a_ramp_may_wait_for_nothing_but_time() -> None:
    ramp = Ramp(arm="b", hold=60, advance="unless_worse")
    assert decide(report(success="keep collecting", latency="keep collecting"), ramp, 60).move == "advance"
    assert decide(report(success="worse", latency="keep collecting"), ramp, 60).move == "roll_back"


def test_a_step_may_hold_for_requests() -> None:
    ramp = Ramp(arm="b", hold=60, hold_requests=500)
    alike = report(success="no difference", latency="better")
    arms = tuple(msgspec.structs.replace(arm, exposures_in_split=499) for arm in alike.arms)
    few = msgspec.structs.replace(alike, arms=arms)
    assert decide(few, ramp, 60) == ("hold", "499 requests of 500")
    arms = tuple(msgspec.structs.replace(arm, exposures_in_split=500) for arm in alike.arms)
    assert decide(msgspec.structs.replace(alike, arms=arms), ramp, 60).move == "advance"
    worse = msgspec.structs.replace(report(success="worse", latency="better"), arms=few.arms)
    assert decide(worse, ramp, 1).move == "roll_back"


def test_reasons_name_metrics_and_figures() -> None:
    ramp = Ramp(arm="b", hold=60)
    assert decide(report(success="worse", latency="better"), ramp, 60).reason == (
        "worse than a by success -0.1 (-0.2 to -0.05)"
    )
    assert decide(report(success="better", latency="keep collecting"), ramp, 60).reason == (
        "more requests, to say that it is no worse by latency"
    )
    assert decide(report(success="better", latency="better"), ramp, 60).reason == "no worse than a by success, latency"
    assert decide(report(), ramp, 15).reason == "45 s of 60 s"
