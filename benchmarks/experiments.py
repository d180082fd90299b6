"""How often the statistics of experiments are wrong, and how many requests they need, by simulation.

`python -m benchmarks.experiments [--quick] [--runs N]` prints the tables of docs/benchmarks/experiments.md.

Each cell is simulated many times. Somebody looks at `LOOKS` times, log-spaced from the first request that could give an
interval to the last, so early looks are dense; the first table compares this with 1500 looks. Requests are counted in
buckets as the gateway counts them. The arithmetic is that of `gateway.experiments.statistics` over arrays of looks, and
each run checks it against the product's own functions. "Before" is what the gateway did until 0.2: a normal interval
with each arm's own variance, and plain seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from benchmarks.experiment_looks import Draw, Requests, Traffic, draw, look, look_as_before, look_times
from gateway.experiments.metrics import METRICS
from gateway.experiments.statistics.comparison import metric_alphas
from gateway.experiments.statistics.confidence import Array, Interval, Mean, sample_ratio_mismatch
from gateway.experiments.statistics.evalue import fails_more
from gateway.experiments.statistics.histogram import (
    BINS,
    RATIO,
    SHORTEST,
    UNFINISHED,
    log_design_effect,
    quantile_ratio,
)
from gateway.routing.assignment import BUCKETS

ALPHA = 0.05
LOOKS = 120
SPLITS = {"50/50": (0.5, 0.5), "90/10": (0.9, 0.1), "99/1": (0.99, 0.01)}
USERS = (50, 300, 1000, 5000)


@dataclass(frozen=True)
class Cell:
    """What is simulated.

    Attributes:
        values: of requests.
        traffic: how they come.
        truth: the difference of the rates, or of the mean logarithms.
        rate: whether values are 0 and 1; else seconds, compared by their logarithms.
    """

    title: str
    values: Draw
    traffic: Traffic
    truth: float = 0.0
    rate: bool = False


def successes(
    control: float, other: float | None = None, spread: float = 0.0, level: Callable[[Array], Array] | None = None
) -> Draw:
    """Zeros and ones. `spread`: of the units' failure rates; `level`: what the failure rate is multiplied by."""

    def values(source: np.random.Generator, arms: Array, when: Array, own: Array) -> Array:
        fails = np.where(arms > 0, 1 - (control if other is None else other), 1 - control)
        if spread:
            fails = fails * np.exp(spread * own - spread**2 / 2)
        if level is not None:
            fails = fails * level(when)
        return (source.random(len(arms)) >= fails).astype(float)

    return values


def lognormal(sigma: float, longer: float = 0.0, level: Callable[[Array], Array] | None = None) -> Draw:
    """Seconds; half of the variance is the units'."""

    def values(source: np.random.Generator, arms: Array, when: Array, own: Array) -> Array:
        found = np.exp(sigma * np.sqrt(0.5) * (source.standard_normal(len(arms)) + own)) * np.where(
            arms > 0, 1 + longer, 1
        )
        return found if level is None else found * level(when)

    return values


def pareto(shape: float) -> Draw:
    return lambda source, arms, _when, _own: 1 + source.pareto(shape, len(arms))


def time_outs(chance: float, factor: float, more: float = 0.0) -> Draw:
    """Lognormal seconds, of which some are `factor` times as long; the other arm has `more` of them."""

    def values(source: np.random.Generator, arms: Array, _when: Array, _own: Array) -> Array:
        hit = source.random(len(arms)) < chance * np.where(arms > 0, 1 + more, 1)
        return source.lognormal(0, 0.5, len(arms)) * np.where(hit, factor, 1.0)

    return values


def diurnal(when: Array) -> Array:
    return 1 + 0.8 * np.sin(8 * np.pi * when)


def drift(when: Array) -> Array:
    return 1 + 3 * when


def outage(when: Array) -> Array:
    return np.where((when > 0.3) & (when < 0.35), 50.0, 1.0)


def cells(requests: int) -> dict[str, list[Cell]]:
    """The grid, by table."""
    splits = {name: Traffic(requests, (shares,)) for name, shares in SPLITS.items()}
    three = Traffic(requests, ((0.98, 0.01, 0.01),))
    two = {name: splits[name] for name in ("50/50", "90/10")}
    equal = [
        Cell(f"success {p}, {name}", successes(p), at, rate=True)
        for p in (0.5, 0.9, 0.99, 0.999)
        for name, at in splits.items()
    ]
    equal += [Cell("success 0.99, 98/1/1", successes(0.99), three, rate=True)]
    times = {f"lognormal, sigma {sigma}": lognormal(sigma) for sigma in (0.5, 1.0, 1.5, 2.0)}
    times |= {
        "Pareto 1.8": pareto(1.8),
        "1 % take 60 times as long": time_outs(0.01, 60),
        "0.1 % take 600 times as long": time_outs(0.001, 600),
    }
    equal += [Cell(f"{title}, {name}", values, at) for title, values in times.items() for name, at in splits.items()]
    equal += [Cell("lognormal, sigma 1.5, 98/1/1", lognormal(1.5), three)]
    effects = [
        Cell(f"success {a} to {b}, {name}", successes(a, b), at, b - a, rate=True)
        for a, b in ((0.99, 0.98), (1.0, 0.99), (0.999, 0.99), (0.99, 0.96), (0.96, 0.99), (0.9, 0.855))
        for name, at in two.items()
    ]
    effects += [
        Cell(f"lognormal, sigma {sigma}, {longer:+.0%}, {name}", lognormal(sigma, longer), at, log(1 + longer))
        for sigma, longer in ((0.5, 0.05), (0.5, 0.1), (0.5, 0.2), (1.5, 0.5))
        for name, at in two.items()
    ]
    effects += [
        Cell(f"20 % more time-outs, {name}", time_outs(0.01, 60, 0.2), at, 0.002 * log(60)) for name, at in two.items()
    ]
    clustered = [
        cell
        for users in USERS
        for name, at in two.items()
        for cell in (
            Cell(
                f"success 0.95, {users} users, {name}",
                successes(0.95, spread=1.0),
                Traffic(requests, at.shares, users),
                rate=True,
            ),
            Cell(f"lognormal, sigma 1, {users} users, {name}", lognormal(1.0), Traffic(requests, at.shares, users)),
        )
    ]
    return {"equal arms": equal, "real effects": effects, "users": clustered, "time": _changing(requests)}


def _changing(requests: int) -> list[Cell]:
    """Traffic that changes, and splits that do."""
    changed = ((0.9, 0.1), (0.5, 0.5))
    ramp = ((0.99, 0.01), (0.95, 0.05), (0.8, 0.2), (0.5, 0.5))
    found = []
    for name, shares in (
        ("50/50", (SPLITS["50/50"],)),
        ("90/10", (SPLITS["90/10"],)),
        ("90/10 then 50/50", changed),
        ("ramp 1, 5, 20, 50 %", ramp),
    ):
        at, crowd = Traffic(requests, shares), Traffic(requests, shares, 1000)
        found += [
            Cell(f"outage of both arms, success 0.99, {name}", successes(0.99, level=outage), at, rate=True),
            Cell(f"diurnal failures, success 0.97, {name}", successes(0.97, level=diurnal), at, rate=True),
            Cell(f"failures drift from 3 % to 12 %, {name}", successes(0.97, level=drift), at, rate=True),
            Cell(f"diurnal times, sigma 0.5, {name}", lognormal(0.5, level=diurnal), at),
            Cell(f"times drift to fourfold, sigma 0.5, {name}", lognormal(0.5, level=drift), at),
            Cell(f"times drift, 1000 users, {name}", lognormal(0.5, level=drift), crowd),
        ]
    return found


@dataclass
class Found:
    """Shares of runs, and requests until a word in most runs."""

    missed: float
    wrong: float
    before: float
    needed: float
    needed_before: float


def simulate(cell: Cell, runs: int, seed: int, count: int = LOOKS) -> Found:
    """Run one cell."""
    arms = len(cell.traffic.shares[0])
    times = look_times(cell.traffic.requests, count)
    alpha = ALPHA / (arms - 1)
    missed = wrong = before = 0
    needed, needed_before = [], []
    for run in range(runs):
        source = np.random.default_rng((seed, run))
        requests = draw(source, cell.traffic, cell.values)
        compared = requests if cell.rate else requests._replace(values=np.log(requests.values))
        ours = [look(compared, arm, alpha, times, rate=cell.rate) for arm in range(1, arms)]
        old = [look_as_before(requests, arm, alpha, times) for arm in range(1, arms)]
        missed += any(each.excluded(cell.truth).any() for each in ours)
        if not cell.truth or cell.rate:
            before += any(each.excluded(cell.truth).any() for each in old)
        zero, zero_before = ours[0].excluded(0.0), old[0].excluded(0.0)
        estimates = ours[0].sides.value[:, 1] - ours[0].sides.value[:, 0]
        wrong += bool(cell.truth and (zero & (np.sign(estimates) != np.sign(cell.truth))).any())
        needed.append(float(times[zero.argmax()]) if zero.any() else inf)
        needed_before.append(float(times[zero_before.argmax()]) if zero_before.any() else inf)
    in_most = [float(np.quantile(each, 0.8, method="higher")) for each in (needed, needed_before)]
    return Found(missed / runs, wrong / runs, before / runs, *in_most)


def print_cells(title: str, of: list[Cell], runs: int) -> None:
    with_effect = any(cell.truth for cell in of)
    print(f"\n### {title}\n")
    head = "| case | missed the truth | before |" + (
        " wrong direction | requests for 80 % | before |" if with_effect else ""
    )
    print(head + "\n|" + "---|" * (head.count("|") - 1))
    worst = 0.0
    for number, cell in enumerate(of):
        found = simulate(cell, runs, number)
        worst = max(worst, found.missed)
        has_before = cell.rate or not cell.truth
        row = f"| {cell.title} | {found.missed:.3f} | {f'{found.before:.3f}' if has_before else '-'} |"
        if with_effect:
            row += f" {found.wrong:.3f} | {_n(found.needed)} | {_n(found.needed_before)} |"
        print(row, flush=True)
    print(f"\nThe highest is {worst:.3f}.")


def _n(requests: float) -> str:
    return f"{requests:,.0f}" if requests < inf else "more"


def print_looks(runs: int, requests: int) -> None:
    """Whether log-spaced looks find what a look after every observation would."""
    print("\n### looks\n\n| case | 60 looks | 120 looks | 1500 looks |\n|---|---|---|---|")
    for cell in (
        Cell("success 0.9, 90/10", successes(0.9), Traffic(requests, (SPLITS["90/10"],)), rate=True),
        Cell("success 0.99, 50/50", successes(0.99), Traffic(requests, (SPLITS["50/50"],)), rate=True),
        Cell("lognormal, sigma 1.5, 90/10", lognormal(1.5), Traffic(requests, (SPLITS["90/10"],))),
    ):
        shares = " | ".join(f"{simulate(cell, runs, 99, count).missed:.3f}" for count in (60, 120, 1500))
        print(f"| {cell.title} | {shares} |", flush=True)


def print_families(runs: int, requests: int) -> None:
    """Whether any metric of a report ever has a word other than "no difference", between equal arms."""
    print("\n### all metrics of a report\n\n| split | any word | at alpha for each metric |\n|---|---|---|")
    alphas = metric_alphas(METRICS, ALPHA)
    values = {"rate": successes(0.97), "time": lognormal(1.0), "number": lognormal(0.5)}
    for name, shares in SPLITS.items():
        words = np.zeros(2)
        for run in range(runs):
            source = np.random.default_rng((6, run))
            drawn = draw(source, Traffic(requests, (shares,)), successes(0.97))
            said = np.zeros(2, bool)
            for metric in METRICS:
                # Independent metrics are the worst case for the chance of any word.
                found = values[metric.kind](source, drawn.arms, drawn.values, source.standard_normal(requests))
                each = drawn._replace(values=np.log(found) if metric.kind == "time" else found)
                for number, alpha in enumerate((alphas[metric.name], ALPHA)):
                    looked = look(each, 1, alpha, look_times(requests, LOOKS // 2), rate=metric.kind == "rate")
                    said[number] |= looked.excluded(0.0).any()
            words += said
        print(f"| {name} | {words[0] / runs:.3f} | {words[1] / runs:.3f} |", flush=True)


def print_sample_ratio(runs: int, requests: int) -> None:
    """False alarms and found losses of the sample-ratio check."""
    print("\n### sample-ratio mismatch\n\n| case | alarms | requests for 80 % |\n|---|---|---|")
    cases = [
        (name, shares, users, 0.0)
        for name, shares in (*SPLITS.items(), ("98/2", (0.98, 0.02)), ("98/1/1", (0.98, 0.01, 0.01)))
        for users in (0, 300, 5000)
    ]
    cases += [(name, SPLITS[name], 0, lost) for name in ("50/50", "90/10") for lost in (0.05, 0.2, 0.36)]
    for name, shares, users, lost in cases:
        at = []
        for run in range(runs):
            source = np.random.default_rng((7, run))
            drawn = draw(source, Traffic(requests, (shares,), users), lambda source, arms, *_: source.random(len(arms)))
            at.append(_alarm(drawn, np.array(shares), lost))
        alarms = np.isfinite(at).mean()
        title = f"{name}, {users or 'each request its own'} user{'s' if users else ''}" + (
            f", {lost:.0%} of an arm lost" if lost else ""
        )
        print(f"| {title} | {alarms:.3f} | {_n(float(np.quantile(at, 0.8, method='higher')))} |", flush=True)


def _alarm(drawn: Requests, shares: Array, lost: float) -> float:
    """After how many requests the check raises an alarm."""
    kept = (drawn.arms != 1) | (drawn.values >= lost)
    arms, buckets = drawn.arms[kept], drawn.buckets[kept]
    for now in look_times(len(arms), 40):
        counts = np.bincount(arms[:now] * BUCKETS + buckets[:now], minlength=len(shares) * BUCKETS)
        if sample_ratio_mismatch(counts.reshape(len(shares), BUCKETS).astype(float), shares, 0.001):
            return float(now)
    return inf


def print_guardrail(runs: int) -> None:
    """Requests of an arm until the early stop, at worse_than = 0.02 and half of alpha."""
    print("\n### early stop\n\n| fails | share | users | stopped | its requests: median | 90 % |")
    print("|---|---|---|---|---|---|")
    cases = [(fails, share, 0) for share in (0.5, 0.05) for fails in (1.0, 0.5, 0.2, 0.1)]
    cases += [(0.01, share, users) for share in (0.5, 0.05, 0.01) for users in (0, 50, 300, 1000)]
    cases += [(0.03, share, users) for share in (0.5, 0.05) for users in (0, 300)]
    for fails, share, users in cases:
        values = successes(0.99, 1 - fails, spread=0.0 if fails > 0.05 else 1.0)
        at = [
            _stop(draw(np.random.default_rng((8, run)), Traffic(6000, ((1 - share, share),), users), values))
            for run in range(runs)
        ]
        median, most = (_n(float(np.quantile(at, q, method="higher"))) for q in (0.5, 0.9))
        print(
            f"| {fails:.0%} | {share:.0%} | {users or '-'} | {np.isfinite(at).mean():.3f} | {median} | {most} |",
            flush=True,
        )


def _stop(requests: Requests) -> float:
    """How many requests the arm had when it was stopped. Evidence grows only with its failures."""
    votes = np.zeros((2, 2, BUCKETS))
    after = 0
    for number, (arm, bucket, success) in enumerate(zip(requests.arms, requests.buckets, requests.values, strict=True)):
        votes[arm, 0, bucket] += 1
        votes[arm, 1, bucket] += success
        if arm and not success and number >= after:
            if fails_more(votes[0], votes[1], 0.02, ALPHA / 2):
                return float(votes[1, 0].sum())
            after = number + number // 100
    return inf


def print_quantiles(runs: int, requests: int) -> None:
    """Whether the bounds on ratios of quantiles hold, and how wide they are at the end."""
    print("\n### quantiles\n\n| case | p50 missed | p95 missed | p50 within | p95 within |\n|---|---|---|---|---|")
    for title, values, users in (
        ("lognormal, sigma 1", lognormal(1.0), 0),
        ("1 % take 60 times as long", time_outs(0.01, 60), 0),
        ("Pareto 1.8", pareto(1.8), 0),
        ("lognormal, sigma 1", lognormal(1.0), 1000),
    ):
        for name, shares in SPLITS.items():
            missed, width = np.zeros(2), np.zeros(2)
            for run in range(runs):
                drawn = draw(np.random.default_rng((9, run)), Traffic(requests, (shares,), users), values)
                found = _ratios(drawn)
                missed += [any(not low <= 1 <= high for _, low, high in each) for each in found]
                width += [log(each[-1].high / max(each[-1].low, 1e-9)) / 2 for each in found]
            within = " | ".join(f"±{exp(each / runs) - 1:.0%}" if each < runs else "more" for each in width)
            shares_missed = " | ".join(f"{each:.3f}" for each in missed / runs)
            print(f"| {title}{', 1000 users' if users else ''}, {name} | {shares_missed} | {within} |", flush=True)


def _ratios(drawn: Requests) -> list[list[Interval]]:
    bins = np.clip(np.floor(np.log(drawn.values / SHORTEST) / log(RATIO)).astype(int) + 1, 0, UNFINISHED)
    found: list[list[Interval]] = [[], []]
    times = look_times(len(bins), 20)
    sides = look(drawn._replace(values=np.log(drawn.values)), 1, ALPHA, times, rate=False).sides
    for at, now in enumerate(times):
        counts = [np.bincount(bins[:now][drawn.arms[:now] == arm], minlength=BINS).astype(float) for arm in (0, 1)]
        means = (Mean(0.0, *(float(each[at, arm]) for each in sides[1:])) for arm in (0, 1))
        effects = [log_design_effect(*each) for each in zip(counts, means, strict=True)]
        for each, q in zip(found, (0.5, 0.95), strict=True):
            each.append(quantile_ratio(*counts, q, ALPHA, (effects[0], effects[1])))
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--runs", type=int, help="experiments for each cell")
    options = parser.parse_args()
    runs, requests = options.runs or (40 if options.quick else 200), 10_000 if options.quick else 20_000
    began = time.process_time()
    error = 1.96 * (ALPHA * (1 - ALPHA) / runs) ** 0.5
    print(
        f"{runs} experiments of {requests:,} requests for each cell, alpha {ALPHA}: a share of {ALPHA} is ±{error:.3f}."
    )
    print_looks(runs // 2, requests)
    for title, of in cells(requests).items():
        print_cells(title, of, runs)
    print_families(runs // 2, requests)
    print_sample_ratio(runs, requests)
    print_guardrail(runs // 2)
    print_quantiles(runs // 6, requests)
    print(f"\n{time.process_time() - began:.0f} s of CPU time.")


if __name__ == "__main__":
    main()
