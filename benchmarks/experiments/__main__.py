"""`python -m benchmarks.experiments [--quick] [--runs N]` prints the tables of docs/benchmarks/experiments.md.

Each cell is simulated many times, and somebody looks after every observation. Requests are counted in buckets as the
gateway counts them. The arithmetic is that of `gateway.experiments.statistics` over arrays of looks, and each run
checks it against the product's own functions. "Before" is what the gateway did until 0.2: a normal interval with each
arm's own variance, and plain seconds.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.experiments.cells import changing, equal_arms, real_effects, users
from benchmarks.experiments.simulate import ALPHA, print_cells
from benchmarks.experiments.tables import print_families, print_guardrail, print_quantiles, print_sample_ratio


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--runs", type=int, help="experiments for each cell")
    options = parser.parse_args()
    runs, requests = options.runs or (20 if options.quick else 200), 10_000 if options.quick else 20_000
    began = time.process_time()
    error = 1.96 * (ALPHA * (1 - ALPHA) / runs) ** 0.5
    print(
        f"{runs} experiments of {requests:,} requests for each cell, alpha {ALPHA}: a share of {ALPHA} is ±{error:.3f}."
    )
    misses = [
        missed
        for title, cells in (
            ("Equal arms", equal_arms(requests)),
            ("Real effects", real_effects(requests)),
            ("Users", users(requests)),
            ("Changing traffic, changing splits", changing(requests)),
        )
        for missed in print_cells(title, cells, runs)
    ]
    print(f"\nOf {len(misses)} cells the highest is {max(misses):.3f}, and the mean {sum(misses) / len(misses):.3f}.")
    print_families(max(1, runs // 2), requests)
    print_sample_ratio(runs, requests)
    print_guardrail(max(1, runs // 2))
    print_quantiles(max(1, runs // 6), requests)
    print(f"\n{time.process_time() - began:.0f} s of CPU time.")


if __name__ == "__main__":
    main()
