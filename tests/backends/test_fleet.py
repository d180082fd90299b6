"""The fleet simulation: its engine is the product's scheduler in less time, and its faults lose nothing."""

from __future__ import annotations

from random import Random

import pytest

from backends.autoscaling import Scaling
from benchmarks.fleet.__main__ import figures, run
from benchmarks.fleet.cell import Cell, Plan
from benchmarks.fleet.engines import Measured, fitted
from benchmarks.fleet.replica import Job, Replica, Shape, Speed
from benchmarks.fleet.scheduled import ScheduledReplica
from benchmarks.fleet.traffic import Load, Traffic

SCARCE = Shape(blocks=400)


def test_a_simulated_engine_does_what_the_scheduler_does() -> None:
    plan = Plan(gateways=2, requests=300, scaling=Scaling(min=2, max=2))
    ours, theirs = (figures(run(plan, Load(6.0), 3, kind)) for kind in (Replica, ScheduledReplica))
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("kind", [Replica, ScheduledReplica])
def test_an_engine_without_blocks_preempts_and_ends_all(kind: type[Replica]) -> None:
    engine = kind(0, Cell(Plan(), Traffic(Load(1.0), 1, 64, 1)).speed, SCARCE)
    jobs = [Job("", [bytes([number, place]) * 8 for place in range(40)], 1200, 1200, 0, 0.0) for number in range(16)]
    for job in jobs:
        assert engine.submit(0.0, job)
    ended: list[Job] = []
    while engine.until is not None:
        ended += engine.end_step(engine.until).ended
        engine.pool.check()
    assert len(ended) == len(jobs)
    assert engine.pool.free == engine.pool.count


def test_the_step_times_of_a_run_are_found_whatever_the_machine_does_beside() -> None:
    draw = Random(1)
    truth = Speed(0.01, 0.0006, 1e-6, ((0, 0.005), (64, 0.02), (256, 0.05)), (1.0, 2.0, 0.5))
    steps = []
    for _ in range(3000):
        began, prompt = draw.uniform(0.0, 3.0), draw.choice((0, 8, 40, 64, 100, 256))
        sequences, cached = draw.randint(1, 16), draw.randrange(10_000)
        steps.append(Measured(sequences, cached, prompt, began, truth.of(sequences, cached, prompt, began)))
    found = fitted(steps)
    for each in steps[:100]:
        seconds = found.of(each.sequences, each.cached, each.prompt, each.began)
        assert seconds == pytest.approx(each.seconds, rel=0.05)


def test_no_request_is_lost_with_machines_engines_and_the_head() -> None:
    plan = Plan(
        gateways=3,
        scaling=Scaling(min=1, max=8, per_queue=4.0, down_after=30.0),
        requests=1200,
        load=10.0,
        machines=8,
        repair=60.0,
        deaths=((100.0, 2, True), (150.0, 1, False), (250.0, 8, True)),
        no_head=(95.0, 130.0),
        deploys=(200.0,),
    )
    result = run(plan, Load(8.0), 5)
    assert result.ended == result.asked >= plan.requests
    assert result.refused == 0
    assert result.deaths >= 4
    assert result.moved > 0
    # All machines die at last: streams go on once some are repaired and engines have loaded.
    assert max(result.pauses) > 60.0 + 10.0
    assert min(result.pauses) < 5.0
    assert result.most_engines > 1
