"""`python -m benchmarks.fleet [--only WORD ...] [--cells N] [--seed N]` prints the tables of docs/benchmarks/fleet.md.

Figures are of simulated engines: their speed and what clients ask are assumptions (`replica.Speed`, `traffic`). First
the simulated engine is compared with the product's own scheduler, and then with three engine processes; where it is off
by more than a tenth, the other tables do not count, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import get_args

from backends.affinity import AffinityPolicy
from backends.autoscaling import Scaling
from benchmarks.fleet.cell import FLOORS, Cell, Plan, Policy, Result
from benchmarks.fleet.engines import LENGTHS, SHAPE, drive, fitted, throughput
from benchmarks.fleet.replica import Replica, Shape, Speed
from benchmarks.fleet.scheduled import ScheduledReplica
from benchmarks.fleet.traffic import DAY, Load, Traffic
from gateway.routing.assignment import Rendezvous

HOUR = 3600.0
MACHINES, GATEWAYS, REQUESTS = 1000, 50, 10_000_000
"""Of the fleet; a day's requests."""
_WORST = 0.10
_TIMES = 11
"""Simulations of which the median is compared with real engines."""
_ROUNDS = ((12.0, 2, 1000), (18.0, 2, 1000), (50.0, 3, 1500))
"""With real engines: requests per second, rounds that are taken together, and requests of a round. Simulations of one
round whose steps take up to 2 % more or less differ: by a standard deviation of 7 to 8 % in the 99th percentile of TTFT
at the lower rates, and of 15 % in its median at the highest one with 1,000 requests. One round shows no error of 10 %.
"""
_SLOWDOWN = 5.0
"""Of real engines: three of them then take half a core, and seldom compute at the same time."""


def main() -> int:
    """Run and print."""
    tables: dict[str, Callable[[int], bool]] = {
        "validation": validation,
        "engines": engines,
        "replicas": replicas,
        "policies": policies,
        "gateways": gateways,
    }
    names = [*tables, "day"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--cells", type=int, default=16, help="into which the fleet is divided; one is simulated")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tables["day"] = partial(day, given.cells)
    gc.disable()  # millions of objects, no cycles among those that end
    holds = True
    for name in given.only:
        began = time.process_time()
        holds &= tables[name](given.seed)
        print(f"{name}: {time.process_time() - began:.0f} s of CPU time\n", flush=True)
    return 0 if holds else 1


def run(plan: Plan, load: Load, seed: int, replica: type[Replica] = Replica) -> Result:
    """Simulate one cell."""
    return Cell(plan, Traffic(load, seed, Shape().block, plan.gateways), replica=replica, seed=seed).run()


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them are."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def hit_rate(result: Result) -> float:
    """The share of prompt tokens that were cached."""
    return result.cached_tokens / max(1, result.prompt_tokens)


def figures(result: Result) -> dict[str, float]:
    """What is compared: by name, in milliseconds, shares and tokens a second."""
    return {
        "hit rate": hit_rate(result),
        "TTFT p50": percentile(result.first, 0.5) * 1e3,
        "TTFT p99": percentile(result.first, 0.99) * 1e3,
        "ITL p50": percentile(result.between, 0.5) * 1e3,
        "ITL p99": percentile(result.between, 0.99) * 1e3,
        "tokens/s": result.tokens / result.seconds,
    }


def row(name: str, result: Result) -> None:
    """Print a line of a table of policies."""
    of = figures(result)
    print(
        f"| {name:22} | {of['hit rate']:.3f} | {of['TTFT p50']:7.0f} | {of['TTFT p99']:7.0f} | {of['ITL p50']:5.1f} "
        f"| {of['ITL p99']:5.1f} | {of['tokens/s']:8,.0f} |",
        flush=True,
    )


HEAD = "hit rate | TTFT p50, ms | p99 | ITL p50, ms | p99 | tokens/s |\n|---|---|---|---|---|---|---|"  # after the name


def validation(seed: int) -> bool:
    """Three simulated engines beside three of the product's scheduler: equal traffic, equal step times."""
    print("| 3 engines, requests/s | " + " | ".join(figures(Result(seconds=1.0))) + " |\n|---|---|---|---|---|---|---|")
    worst = 0.0
    for rate in (6.0, 12.0, 16.0):
        plan = Plan(gateways=2, requests=5000, scaling=Scaling(min=3, max=3), warmup=60.0)
        ours = figures(run(plan, Load(rate), seed))
        worst = max(worst, compared(rate, ours, run(plan, Load(rate), seed, ScheduledReplica)))
    return counts(worst)


def engines(seed: int) -> bool:
    """Three simulated engines beside three processes with the bundled model: equal traffic over sockets, and step times
    fitted to those of the processes, which are `_SLOWDOWN` times their CPU times.
    """
    print(
        "| 3 processes, requests/s | " + " | ".join(figures(Result(seconds=1.0))) + " |\n|---|---|---|---|---|---|---|"
    )
    return counts(max(beside_processes(*rounds, seed) for rounds in _ROUNDS))


def beside_processes(rate: float, rounds: int, requests: int, seed: int) -> float:
    """Compare at so many requests per second; the largest error."""
    plan = Plan(gateways=2, requests=requests, scaling=Scaling(min=3, max=3), warmup=90 / rate)
    load = Load(rate, pause=15 / rate, prompts=20, lengths=LENGTHS)
    theirs, speeds = [], []
    for number in range(seed, seed + rounds):
        result, steps = drive(3, plan, load, number, _SLOWDOWN)
        theirs.append(result)
        speeds.append(speed := fitted(steps))
        full = sum(each.sequences == SHAPE.sequences for each in steps) / len(steps)
        print(
            f"{len(steps):,} steps, {full:.1%} of them full; in ms: {1e3 * speed.step:.1f}, a sequence "
            f"{1e3 * speed.sequence:.2f}, prompts "
            + ", ".join(f"{number} {1e3 * seconds:.0f}" for number, seconds in speed.prompts[1:])
            + f"; the machine's pace {percentile(speed.pace, 0.05):.2f} to {percentile(speed.pace, 0.95):.2f}",
            flush=True,
        )
    return compared(rate, _repeated(plan, load, speeds, seed), together(theirs))


def _repeated(plan: Plan, load: Load, speeds: Sequence[Speed], seed: int) -> dict[str, float]:
    """The medians of simulations of all rounds whose steps take up to 1 % more or less: less than that changes which
    requests meet at an engine, and so TTFT. Its ranges are printed.
    """
    found = []
    for number in range(_TIMES):
        factor = 1 + 0.02 * (number / (_TIMES - 1) - 0.5)
        results = []
        for place, speed in enumerate(speeds):
            traffic = Traffic(load, seed + place, SHAPE.block, plan.gateways)
            results.append(Cell(plan, traffic, speed._replace(step=speed.step * factor), SHAPE).run())
        found.append(figures(together(results)))
    for name in ("TTFT p50", "TTFT p99"):
        values = [each[name] for each in found]
        print(f"{name} of {_TIMES} simulations: {min(values):.0f} to {max(values):.0f} ms")
    return {name: median(each[name] for each in found) for name in found[0]}


def together(results: Sequence[Result]) -> Result:
    """What came of several runs, as of one."""
    whole = Result()
    for each in results:
        whole.first += each.first
        whole.between += each.between
        whole.prompt_tokens += each.prompt_tokens
        whole.cached_tokens += each.cached_tokens
        whole.tokens += each.tokens
        whole.seconds += each.seconds
    return whole


def replicas(_seed: int) -> bool:
    """Tokens per second of one real engine and of two, whose steps take `_SLOWDOWN` times their CPU time."""
    one, two = (throughput(number, _SLOWDOWN, 60.0) for number in (1, 2))
    print(f"one engine {one:.1f} tokens/s, two {two:.1f}: {two / one:.2f} times (goal: 1.9)")
    return two / one >= 1.9


def compared(label: object, mine: dict[str, float], theirs: Result) -> float:
    """Print a line of a validation; its largest error."""
    others = figures(theirs)
    off = {name: mine[name] / others[name] - 1 for name in mine}
    cells = (f"{mine[name]:.4g} / {others[name]:.4g} ({off[name]:+.1%})" for name in mine)
    print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    return max(map(abs, off.values()))


def counts(worst: float) -> bool:
    """Print the largest error of a validation; whether it is small enough."""
    print(f"largest error {worst:.1%}: " + ("counts" if worst <= _WORST else "DOES NOT COUNT"))
    return worst <= _WORST


def policies(seed: int) -> bool:
    """32 engines, 128 requests a second, 8 gateways, by policy."""
    names: tuple[Policy, ...] = (*FLOORS, "least", "conversation", "prefix")
    print(f"| 32 engines, 8 gateways | {HEAD}")
    found = {}
    for policy in names:
        found[policy] = run(Plan(policy, requests=20_000, warmup=60.0), Load(128.0), seed)
        row(policy, found[policy])
    better = percentile(found["power of two"].first, 0.99) / percentile(found["prefix"].first, 0.99)
    print(f"TTFT p99 of power of two is {better:.1f} times that of prefix (goal: 5)")
    return better >= 5


def gateways(seed: int) -> bool:
    """The policies of the product by the number of gateways, each of which sees others' load once a second."""
    print(f"| 32 engines | {HEAD}")
    rates = {}
    for policy in get_args(AffinityPolicy):
        for number in (1, 8, 50):
            result = run(Plan(policy, number, requests=20_000, warmup=60.0), Load(128.0), seed)
            row(f"{policy}, {number} gateways", result)
            rates[policy, number] = hit_rate(result)
    kept = rates["prefix", 8] / rates["prefix", 1]
    print(f"the hit rate of 8 gateways is {kept:.3f} of that of one (goal: 0.95)")
    return kept >= 0.95


def day(cells: int, seed: int) -> bool:
    """A day of the cell that gets the most of a fleet's users, with faults."""
    assign = Rendezvous("fleet", {f"cell {number}": 1.0 for number in range(cells)})
    sample = [assign.chosen(f"user {number}") for number in range(100_000)]
    share = max(map(sample.count, range(cells))) / len(sample)
    machines = -(-MACHINES // cells)
    scaling = Scaling(min=max(2, machines // 16), max=machines, per_queue=8.0)
    load = Load(REQUESTS * share / DAY, daily=3.0, flash=(15 * HOUR, 600.0, 10.0))
    plan = Plan(
        gateways=-(-GATEWAYS // cells),
        scaling=scaling,
        requests=sys.maxsize,
        until=DAY,
        machines=machines,
        deaths=((5 * HOUR, 1, True), (9 * HOUR, 1, False), (12 * HOUR, machines // 2, True), (18 * HOUR, 2, False)),
        no_head=(12 * HOUR - 60, 12 * HOUR + 60),
        deploys=(20 * HOUR,),
    )
    print(
        f"a cell of {machines} machines and {plan.gateways} gateways; its share of the users: {share:.4f}", flush=True
    )
    report(run(plan, load, seed), machines)
    return True


def report(result: Result, machines: int) -> None:
    """Print what came of a day."""
    print(f"| a day | {HEAD}")
    row("prefix", result)
    hours = result.engine_seconds / HOUR
    print(
        f"- requests ended {result.ended:,}, refused {result.refused}; engines that died {result.deaths}, sequences "
        f"moved {result.moved}, pauses p50 {percentile(result.pauses, 0.5):.2f} s, longest "
        f"{max(result.pauses, default=0):.2f} s; requests that waited for any engine at most {result.unplaced}\n"
        f"- TTFT p99.9 {percentile(result.first, 0.999):.2f} s, longest {max(result.first):.1f} s\n"
        f"- engine hours {hours:.1f}, {hours / (result.oracle_seconds / HOUR):.3f} of what the queue needed at each "
        f"second, {hours / (machines * 24):.3f} of all machines all day; most engines {result.most_engines}\n"
        f"- events of caches {result.event_bytes / result.seconds / 1e3:.1f} kB/s to all gateways",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
