"""A corner of the grid of `benchmarks.experiments`: where intervals once failed, with seeds."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from benchmarks.experiments.cells import SPLITS, Cell
from benchmarks.experiments.simulate import ALPHA, EQUAL, OTHER, PRIMARY, simulate
from benchmarks.experiments.traffic import Traffic, lognormal, outage, successes, time_outs

RUNS = 60
ALLOWED = 0.1
"""Of 60 runs, at most 6: 0.05 and three standard errors would be 8."""

SMALL = Traffic(6000, (SPLITS["90/10"],))
TINY = Traffic(12_000, (SPLITS["99/1"],))
RAMP = Traffic(6000, ((0.95, 0.05), (0.8, 0.2), (0.5, 0.5)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        Cell("rare failures", successes(0.99), SMALL, rate=True),
        Cell("rarer failures", successes(0.999), TINY, rate=True),
        Cell("heavy tails", lognormal(2.0), SMALL),
        Cell("time-outs", time_outs(0.01, 60), SMALL),
        Cell("five arms", successes(0.99), Traffic(6000, ((0.2,) * 5,)), rate=True),
        Cell("one arm fails", successes(1.0, 0.99), SMALL, -0.01, rate=True),
        Cell("users", successes(0.95, spread=1.0), replace(SMALL, units=1000), rate=True),
        Cell("an outage during a ramp", successes(0.99, level=outage), RAMP, rate=True),
    ],
    ids=lambda cell: cell.title,
)
def test_intervals_hold_where_those_of_before_failed(cell: Cell) -> None:
    found = simulate(cell, RUNS, 1)
    assert found.missed <= ALLOWED
    assert found.wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        Cell("success", successes(0.99, 0.96), Traffic(6000, (SPLITS["50/50"],)), -0.03, rate=True),
        Cell("latency", lognormal(0.5, 0.1), Traffic(6000, (SPLITS["50/50"],)), log(1.1)),
    ],
    ids=lambda cell: cell.title,
)
def test_power_is_not_paid_for_it(cell: Cell) -> None:
    found = simulate(cell, RUNS, 2)
    assert found.needed[ALPHA] <= found.needed[PRIMARY] <= 1.4 * found.needed_before[ALPHA]
    assert found.needed[OTHER] <= 1.4 * found.needed_before[EQUAL]
