"""One cell of the grid, simulated many times; and the tables of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.experiments.cells import Cell
from benchmarks.experiments.looks import look, look_as_before
from benchmarks.experiments.traffic import draw
from gateway.experiments.metrics import METRICS
from gateway.experiments.statistics.comparison import metric_alphas

ALPHA = 0.05
_ALPHAS = metric_alphas(METRICS, ("success", "latency"), ALPHA)
PRIMARY, OTHER = _ALPHAS["success"], _ALPHAS["inter_token_latency"]
"""The alphas of a primary metric, and of another one with a good direction, in a report of two arms."""


@dataclass(frozen=True)
class Found:
    """Of the runs of a cell.

    Attributes:
        missed: the share in which an interval missed the truth at any look.
        wrong: in which one excluded 0 on the wrong side.
        before: in which an interval as before missed it; NaN where the two compare something else.
        needed: how many requests of both arms until 0 is excluded in 80 % of the runs, at `ALPHA`, `PRIMARY` and
            `OTHER`, and as before at `ALPHA`; infinite: more than there were.
    """

    missed: float
    wrong: float
    before: float
    needed: tuple[float, ...]


def simulate(cell: Cell, runs: int, seed: int) -> Found:
    """Run one cell, with a look after every observation."""
    arms = len(cell.traffic.shares[0])
    alpha = ALPHA / (arms - 1)
    missed = wrong = before = 0
    needed: list[list[float]] = [[], [], [], []]
    for run in range(runs):
        requests = draw(np.random.default_rng((seed, run)), cell.traffic, cell.values)
        compared = requests if cell.rate else requests._replace(values=np.log(requests.values))
        ours = [look(compared, arm, rate=cell.rate) for arm in range(1, arms)]
        missed += any(each.excluded(cell.truth, alpha).any() for each in ours)
        if arms > 2:
            continue
        (first,), old = ours, look_as_before(requests, 1)
        before += bool(old.excluded(cell.truth, alpha).any())
        if not cell.truth:
            continue
        zeros = [first.excluded(0.0, each) for each in (ALPHA, PRIMARY, OTHER)]
        estimates = first.sides.value[1] - first.sides.value[0]
        wrong += bool((zeros[0] & (np.sign(estimates) != np.sign(cell.truth))).any())
        for found, zero in zip(needed, (*zeros, old.excluded(0.0, ALPHA)), strict=True):
            # A place in the sequence of requests is how many there were.
            found.append(float(zero.argmax() + 1) if zero.any() else inf)
    has_before = arms == 2 and (cell.rate or not cell.truth)
    return Found(
        missed / runs,
        wrong / runs,
        before / runs if has_before else float("nan"),
        tuple(float(np.quantile(each, 0.8, method="higher")) if each else inf for each in needed),
    )


def print_cells(title: str, cells: Sequence[Cell], runs: int) -> list[float]:
    """Print a table; returns the shares of misses."""
    with_effect = any(cell.truth for cell in cells)
    columns = ["case", "missed the truth", "before"]
    if with_effect:
        columns += ["wrong direction", "requests for 80 %, before", "at the same alpha", "primary", "another metric"]
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    misses = []
    for number, cell in enumerate(cells):
        found = simulate(cell, runs, number)
        misses.append(found.missed)
        row = [cell.title, f"{found.missed:.3f}", f"{found.before:.3f}" if found.before == found.before else "-"]
        if with_effect:
            *now, before = found.needed
            row += [f"{found.wrong:.3f}", in_words(before), *(_ratio(each, before) for each in now)]
        print(f"| {' | '.join(row)} |", flush=True)
    return misses


def _ratio(now: float, before: float) -> str:
    return in_words(now) if inf in (now, before) else f"{in_words(now)} ({now / before:.2f})"


def in_words(requests: float) -> str:
    """A number of requests; "more" if there were too few."""
    return f"{requests:,.0f}" if requests < inf else "more"
