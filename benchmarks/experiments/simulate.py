"""One cell of the grid, simulated many times; and the tables of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.experiments.cells import Cell
from benchmarks.experiments.looks import look, look_as_before
from benchmarks.experiments.traffic import as_control, draw
from gateway.experiments.metrics import METRICS
from gateway.experiments.statistics.comparison import metric_alphas
from gateway.experiments.statistics.confidence import Array

ALPHA = 0.05
_ALPHAS = metric_alphas(METRICS, ("success", "latency"), ALPHA)
PRIMARY, OTHER = _ALPHAS["success"], _ALPHAS["inter_token_latency"]
"""The alphas of a primary metric, and of another one with a good direction, in a report of two arms."""
EQUAL = ALPHA / len(METRICS)
"""The alpha of each metric if all have the same part."""


@dataclass(frozen=True)
class Found:
    """Of the runs of a cell.

    Attributes:
        missed: the share in which an interval missed the truth at any look.
        wrong: in which one excluded 0 on the wrong side.
        before: in which an interval as before missed it; NaN if that was not simulated.
        needed: how many requests of both arms until 0 is excluded in 80 % of the runs, by alpha; infinite: more than
            there were.
        needed_before: the same, as before.
    """

    missed: float
    wrong: float
    before: float
    needed: dict[float, float]
    needed_before: dict[float, float]


def simulate(cell: Cell, runs: int, seed: int) -> Found:
    """Run one cell, with a look after every observation."""
    arms = len(cell.traffic.shares[0])
    alpha = ALPHA / (arms - 1)
    missed = wrong = before = 0
    needed: dict[float, list[float]] = {each: [] for each in (ALPHA, PRIMARY, OTHER)}
    needed_before: dict[float, list[float]] = {each: [] for each in (ALPHA, EQUAL, OTHER)}
    for run in range(runs):
        requests = draw(np.random.default_rng((seed, run)), cell.traffic, cell.values)
        compared = requests if cell.rate else requests._replace(values=np.log(requests.values))
        ours = [look(compared, arm, rate=cell.rate) for arm in range(1, arms)]
        missed += any(each.excluded(cell.truth, alpha).any() for each in ours)
        if arms > 2:
            continue
        (first,), old = ours, look_as_before(requests, 1)
        before += bool(old.excluded(cell.truth_of_means, alpha).any())
        if not cell.truth:
            continue
        for each, seen in needed.items():
            zero = first.excluded(0.0, each)
            seen.append(_first(zero))
            if each == ALPHA:
                estimates = first.sides.value[1] - first.sides.value[0]
                wrong += bool((zero & (np.sign(estimates) != np.sign(cell.truth))).any())
        for each, seen in needed_before.items():
            seen.append(_first(old.excluded(0.0, each)))
    return Found(
        missed / runs,
        wrong / runs,
        before / runs if arms == 2 else float("nan"),
        *({each: _most(seen) for each, seen in found.items()} for found in (needed, needed_before)),
    )


def _first(excluded: Array) -> float:
    """After how many requests. A place in their sequence is how many there were."""
    return float(excluded.argmax() + 1) if excluded.any() else inf


def _most(requests: Sequence[float]) -> float:
    """Enough in 80 % of the runs."""
    return float(np.quantile(requests, 0.8, method="higher")) if requests else inf


def print_cells(title: str, cells: Sequence[Cell], runs: int) -> dict[Cell, Found]:
    """Print a table."""
    with_effect = any(cell.truth for cell in cells)
    columns = ["case", "missed the truth", "before", *(["wrong direction"] if with_effect else [])]
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    found = {}
    for number, cell in enumerate(cells):
        found[cell] = each = simulate(cell, runs, number)
        row = [cell.title, f"{each.missed:.3f}", f"{each.before:.3f}" if each.before == each.before else "-"]
        if with_effect:
            row.append(f"{each.wrong:.3f}")
        print(f"| {' | '.join(row)} |", flush=True)
    return found


def print_power(found: Mapping[Cell, Found], runs: int, again: int) -> None:
    """Print how many requests effects take beside those of before, and whether before's interval holds there.

    Args:
        found: by cell, each with an effect.
        runs: of each.
        again: experiments with equal arms, for how often before's interval misses there.
    """
    columns = [
        "case",
        "before, equal arms",
        "before, this effect",
        "before holds",
        "before",
        "now, the same alpha",
        "primary",
        "another metric",
        "before, a ninth of alpha",
        "primary to that",
        "another metric to that",
        "both with the alpha of another metric",
    ]
    print(f"\n## Power beside before\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for number, (cell, each) in enumerate(found.items()):
        equal = _missed_before(cell, again, 2000 + number)
        holds = equal <= ALPHA + error(again) and each.before <= ALPHA + error(runs)
        now, (before, ninth, other) = each.needed, each.needed_before.values()
        row = [cell.title, f"{equal:.3f}", f"{each.before:.3f}", "yes" if holds else "no", in_words(before)]
        row += [_ratio(now[alpha], before) for alpha in (ALPHA, PRIMARY, OTHER)]
        row += [in_words(ninth), *(_quotient(now[alpha], ninth) for alpha in (PRIMARY, OTHER))]
        row.append(_quotient(now[OTHER], other))
        print(f"| {' | '.join(row)} |", flush=True)


def _missed_before(cell: Cell, runs: int, seed: int) -> float:
    """The share of experiments with equal arms in which an interval as before misses 0."""
    missed = 0
    for run in range(runs):
        requests = draw(np.random.default_rng((seed, run)), cell.traffic, as_control(cell.values))
        missed += bool(look_as_before(requests, 1).excluded(0.0, ALPHA).any())
    return missed / runs


def error(runs: int) -> float:
    """How exactly so many runs tell a share of `ALPHA`: 1.96 standard errors."""
    return float(1.96 * (ALPHA * (1 - ALPHA) / runs) ** 0.5)


def print_again(found: Mapping[Cell, Found], runs: int) -> None:
    """Simulate the cells above alpha again, with other seeds: of many cells some are above it by chance."""
    print(f"\n## Cells above {ALPHA}, again\n\n| case | missed the truth | of {runs} others |\n|---|---|---|")
    for cell, each in found.items():
        if each.missed > ALPHA:
            print(f"| {cell.title} | {each.missed:.3f} | {simulate(cell, runs, 1000).missed:.3f} |", flush=True)


def _ratio(now: float, before: float) -> str:
    return in_words(now) if inf in (now, before) else f"{in_words(now)} ({_quotient(now, before)})"


def _quotient(now: float, before: float) -> str:
    return "-" if inf in (now, before) else f"{now / before:.2f}"


def in_words(requests: float) -> str:
    """A number of requests; "more" if there were too few."""
    return f"{requests:,.0f}" if requests < inf else "more"
