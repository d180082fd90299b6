"""`python -m benchmarks.experiments [--quick] [--runs N]` prints the tables of docs/benchmarks/experiments.md.

Each cell is simulated many times, and somebody looks after every observation. Requests are counted in buckets as the
gateway counts them. The arithmetic is that of `gateway.experiments.statistics` over arrays of looks, and each run
checks it against the product's own functions. "Before" is what the gateway did until 0.2: a normal interval with each
arm's own variance, and plain seconds.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.experiments.cells import Cell, changing, equal_arms, real_effects, users
from benchmarks.experiments.simulate import ALPHA, Found, error, print_again, print_cells, print_power
from benchmarks.experiments.tables import print_families, print_guardrail, print_quantiles, print_sample_ratio


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--runs", type=int, help="experiments for each cell")
    options = parser.parse_args()
    runs, requests = options.runs or (20 if options.quick else 200), 10_000 if options.quick else 20_000
    began = time.process_time()
    print(
        f"{runs} experiments of {requests:,} requests for each cell, alpha {ALPHA}: a share of {ALPHA} is "
        f"±{error(runs):.3f}. Twice as many where arms differ."
    )
    found: dict[Cell, Found] = {}
    for title, cells, times in (
        ("Equal arms", equal_arms(requests), 1),
        ("Real effects", effects := real_effects(requests), 2),
        ("Users", users(requests), 1),
        ("Changing traffic, changing splits", changing(requests), 1),
    ):
        found |= print_cells(title, cells, times * runs)
    shares = [each.missed for each in found.values()]
    print(f"\nOf {len(shares)} cells the highest is {max(shares):.3f}, and the mean {sum(shares) / len(shares):.3f}.")
    print_power({cell: found[cell] for cell in effects}, 2 * runs, 5 * runs)
    print_again(found, 5 * runs)
    print_families(max(1, runs // 2), requests)
    print_sample_ratio(runs, requests)
    print_guardrail(max(1, runs // 2))
    print_quantiles(max(1, runs // 6), requests)
    print(f"\n{time.process_time() - began:.0f} s of CPU time.")


if __name__ == "__main__":
    main()
