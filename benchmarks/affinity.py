"""The CPU time of choosing one of several engines for a request: `python -m benchmarks.affinity [REPLICAS]`.

A prompt of 4,000 tokens in blocks of 16, of which the engines have cached prefixes of all lengths, among 40,000 blocks
of other prompts. The names of the prompt's blocks are counted apart: a worker computes them once, and the engine, which
needs them, too, is given them.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

from backends.affinity import AffinityPolicy, Candidate, PrefixIndex, choose, draws
from backends.native.protocol.blocks import prompt_keys
from backends.native.protocol.messages import Submit

TOKENS, BLOCK, OTHERS = 4000, 16, 40_000
ROUNDS = 300


def microseconds(run: Callable[[], object]) -> float:
    """The median of many runs."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        run()
        times.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(times)


def main(replicas: int) -> None:
    """Measure and print."""
    submit = Submit(0, tuple(range(TOKENS)), 1)
    keys = prompt_keys(submit, BLOCK)
    index = PrefixIndex()
    for number in range(replicas):
        index.store(number, keys[: len(keys) * (number + 1) // replicas])
        index.store(number, [secrets.token_bytes(16) for _ in range(OTHERS // replicas)])

    numbers = draws(0.0)

    def decide(policy: AffinityPolicy) -> int:
        hits = index.hits(keys) if policy == "prefix" else {}
        candidates = [
            Candidate(str(number), number % 7, hits.get(number, 0), 0.5, number % 5) for number in range(replicas)
        ]
        return choose(policy, candidates, len(keys), "a conversation", next(numbers))

    print(f"{replicas} engines, {len(keys)} blocks, {len(index):,} blocks in the index")
    print(f"names of the blocks    {microseconds(lambda: prompt_keys(submit, BLOCK)):8.1f} µs")
    print(f"look-up                {microseconds(lambda: index.hits(keys)):8.1f} µs")
    for policy in get_args(AffinityPolicy):
        print(f"decision, {policy:12} {microseconds(partial(decide, policy)):8.1f} µs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
