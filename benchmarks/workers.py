"""What more workers cost: `python -m benchmarks.workers [--workers 2] [--requests 2000] [--rounds 5]`.

Three systems run at once, in front of one upstream, and are measured in turn: a server of one worker, a server of N
workers, and N servers of one worker each, which share nothing. Printed are the CPU time of all processes for a whole
answer and for a chunk that comes alone, how evenly the workers share it, and the memory of each worker. Where client,
upstream and workers have fewer cores than they could use, as on two, answers a second say nothing of scaling. The CPU
time of an answer does: N workers scale by the time of N servers over theirs, as far as there are cores. One worker that
gets all requests takes less for each, since more of them come in a turn of its event loop (`backends.cohorts`).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.connections import resident
from benchmarks.gateway import cpu_seconds, descendants, drive, server
from benchmarks.remote import configured, upstream

CONNECTIONS = 64


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    one, many, apart = "1 worker", f"{given.workers} workers", f"{given.workers} servers of one worker"
    with ExitStack() as stack:
        far = stack.enter_context(upstream())
        text = configured(far)
        shared = stack.enter_context(server(text.replace("[server]\n", f"[server]\nworkers = {given.workers}\n", 1)))
        single = [stack.enter_context(server(text)) for _ in range(given.workers)]
        systems = {one: single[:1], many: [shared], apart: single}
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        for number in range(given.rounds + 1):
            for name, servers in systems.items():
                cost = _costs(servers, given.requests)
                if number:  # the first round warms up
                    costs[name].append(cost)
        whole, chunk = ({name: median(each[at] for each in found) for name, found in costs.items()} for at in (0, 1))
        for name in systems:
            print(f"{name:24} {whole[name] * 1e6:6.1f} µs a whole answer, {chunk[name] * 1e6:5.1f} µs a chunk alone")
        for process in _workers(shared[0]):
            print(f"    a worker: {cpu_seconds(process):5.2f} s of CPU in all, {_memory(process)}")
    for name in (apart, one):
        print(f"{many} scale by {whole[name] / whole[many]:.2f} of {given.workers} beside {name}", end="")
        print(", goal at least 0.95" if name == apart else "")


def _costs(servers: Sequence[tuple[int, int]], requests: int) -> tuple[float, float]:
    """CPU seconds of a whole answer, and of a chunk alone, of servers (process id, port) that are asked at once."""
    found = []
    for model, asked, stream in (("whole", requests, False), ("single", CONNECTIONS, True)):
        before = sum(cpu_seconds(pid) for pid, _ in servers)
        events = asyncio.run(_drive([port for _, port in servers], model, asked, stream=stream))
        found.append((sum(cpu_seconds(pid) for pid, _ in servers) - before) / (events if stream else asked))
    return found[0], found[1]


async def _drive(ports: Sequence[int], model: str, requests: int, *, stream: bool) -> int:
    """Share requests and connections among these ports; returns the number of events."""
    count = len(ports)
    shares = (drive(port, model, requests // count, CONNECTIONS // count, stream=stream) for port in ports)
    return sum(await asyncio.gather(*shares))


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
