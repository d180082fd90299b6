"""What a second worker costs: `python -m benchmarks.workers [--requests 2000] [--rounds 5] [--workers 1 2]`.

Servers with so many workers run at once, in front of one upstream, and are measured in turn: CPU time of all of a
server's processes for a whole answer and for a chunk that comes alone, how evenly the workers share it, and the memory
of each worker. Where client, upstream and workers have fewer cores than they could use, as on two, answers a second say
nothing of scaling. The CPU time of an answer does: N workers scale by 1 worker's time over theirs, as far as there are
cores.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.connections import resident
from benchmarks.gateway import cpu_seconds, descendants, measure, server
from benchmarks.remote import configured, upstream

CONNECTIONS = 64


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    costs: dict[int, list[tuple[float, float]]] = {count: [] for count in given.workers}
    with ExitStack() as stack:
        far = stack.enter_context(upstream())
        running = {}
        for count in given.workers:
            text = configured(far).replace("[server]\n", f"[server]\nworkers = {count}\n", 1)
            running[count] = stack.enter_context(server(text))
        for _ in range(given.rounds + 1):
            for count, (pid, port) in running.items():
                costs[count].append(_costs(pid, port, given.requests))
        for count, (pid, _) in running.items():
            measured = costs[count][1:]  # the first round warms up
            whole, chunk = (median(column) * 1e6 for column in zip(*measured, strict=True))
            print(f"{count} workers: {whole:6.1f} µs a whole answer, {chunk:5.1f} µs a chunk alone (CPU, medians)")
            for process in _workers(pid):
                print(f"    a worker: {cpu_seconds(process):5.2f} s of CPU in all, {_memory(process)}")
    one = median(whole for whole, _ in costs[given.workers[0]][1:])
    for count in given.workers[1:]:
        ratio = one / median(whole for whole, _ in costs[count][1:])
        print(f"{count} workers scale by {ratio:.2f} of {count} in CPU time, goal at least 0.95")


def _costs(pid: int, port: int, requests: int) -> tuple[float, float]:
    """CPU seconds of a whole answer, and of a chunk alone."""
    whole, done, _ = measure(pid, port, "whole", requests, CONNECTIONS, "openai", stream=False)
    single, _, chunks = measure(pid, port, "single", CONNECTIONS, CONNECTIONS, "openai", stream=True)
    return whole / done, single / chunks


def _workers(pid: int) -> list[int]:
    """The processes that answer: those of the server that have used the most CPU time."""
    found = [process for process in [pid, *descendants(pid)] if not descendants(process)]
    return sorted(found, key=cpu_seconds)[::-1]


def _memory(process: int) -> str:
    """What a process has in memory, and its share of that, if pages that others have, too, are divided among them."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    share = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return f"{resident(process) / 1024:.0f} MB resident, {share / 1024:.0f} MB its share (goal: 60)"


if __name__ == "__main__":
    main()
