"""The server under mixed traffic and faults for a long time: is every request accounted for, and does nothing grow?

    python -m benchmarks.soak [--minutes 60] [--clients 12] [--rate 8] [--rounds 10] [--warm-engine]

`make soak`. Starts the real server with two workers, the bundled model and a scripted backend, and drives it over all
protocols: whole answers and streams, images, grammars, cancels, malformed bodies, clients that write or read slowly.
For the first six tenths of the time, or as long as they take, there are faults (`benchmarks.soak.faults`): workers,
engines and the supervisor are killed and stopped, and the configuration is read again. The rest is calm: there the
growth of each kind of process is measured. The exit code is 1 if a request hung or is not accounted for, if a stream
had a clean end without its last event, or if anything is left of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.gateway import free_port
from benchmarks.soak.accounts import judge
from benchmarks.soak.clients import Pace, Seen, client
from benchmarks.soak.faults import disturb
from benchmarks.soak.server import Samples, Server, total

_SAMPLE = 5.0
_FAULTY = 0.6
"""Part of the time that has faults."""
_SETTLING = 0.1
"""Part of the time after them that is not measured: what was killed is started again, and its caches fill."""
_MINUTES_OF_A_ROUND = 6.0
"""Of the whole time: a round stops the supervisor for 15 seconds, and what was killed takes its time to start."""
_SETTLED = 2.0
"""Seconds in which the last lines are written."""


async def soak(server: Server, port: int, given: argparse.Namespace) -> tuple[Seen, Counter[str], Samples, float, int]:
    """Run clients and faults for the time that was asked for, until the last request has ended.

    Returns:
        What clients saw, the faults by kind, the samples, when the calm part begins that counts, and how many requests
        of that part got 503.
    """
    seen, faults, stop, samples = Seen(), Counter[str](), asyncio.Event(), Samples(server)
    pace, seconds, began = Pace(given.rate), 60 * given.minutes, time.monotonic()
    clients = [asyncio.create_task(client(port, seed, pace, seen, stop)) for seed in range(given.clients)]
    trouble = asyncio.create_task(disturb(server, given.rounds, _FAULTY * seconds, faults))
    calm = began + (_FAULTY + _SETTLING) * seconds
    reported, refused = began, 0
    while (now := time.monotonic()) < began + seconds:
        await asyncio.sleep(min(_SAMPLE, began + seconds - now))
        if trouble.done():
            trouble.result()  # raises if the server could not be started again
            await asyncio.to_thread(samples.take)
        else:
            calm = max(calm, time.monotonic() + _SETTLING * seconds)
        if now < calm:
            refused = seen.count("503")
        if now - reported >= given.report_every:
            reported = now
            print(f"after {(now - began) / 60:.0f} min: {dict(faults)}; {_sum(seen)}")
            print(*samples.trend(calm), sep="\n", flush=True)
    stop.set()
    await asyncio.gather(*clients, trouble)
    return seen, faults, samples, calm, seen.count("503") - refused


def _sum(seen: Seen) -> str:
    hows = Counter[str]()
    for counts in seen.ended.values():
        hows.update(counts)
    return f"{seen.sent} requests: {dict(hows)}"


async def run(folder: Path, given: argparse.Namespace) -> list[str]:
    """Start the server, run, and print the report; what is wrong."""
    server = Server(folder, port := free_port(), warm_engine='"loaded"' if given.warm_engine else "false")
    try:
        await server.start()
        seen, faults, samples, since, refused = await soak(server, port, given)
        await server.start()  # it may be starting still
        await asyncio.sleep(_SETTLED)
        metrics = server.get("/metrics")
    finally:
        left = await server.stop()
    kills, stops = (sum(faults[each] for each in faults if each.startswith(verb)) for verb in ("kill", "stop"))
    print(f"faults: {kills} kills, {stops} stops, {faults['reload']} reloads: {dict(faults)}")
    print("the last process of a killed supervisor ended after {:.1f} s at most: {}".format(*server.longest_end))
    for call, how in sorted(seen.ended.items()):
        print(f"  {call:14}", dict(how))
    print("in the calm part:", *samples.trend(since), sep="\n")
    wrong = judge(seen, server.lives, metrics, kills, server.usage)
    if refused:
        wrong.append(f"{refused} requests of the calm part got 503: something has not started again")
    if running := total(metrics, "gw_requests_running"):
        wrong.append(f"{running:.0f} requests run at the end")
    return wrong + left


def main() -> int:
    """Run and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second; 0: no bound")
    parser.add_argument("--rounds", type=int, help="of five kills, three stops and a reload each (one in 6 minutes)")
    parser.add_argument("--warm-engine", action="store_true", help="keep a loaded engine in waiting")
    parser.add_argument(
        "--report-every", type=float, default=300.0, help="seconds between two lines with figures so far"
    )
    given = parser.parse_args()
    given.rounds = given.rounds or max(1, round(given.minutes / _MINUTES_OF_A_ROUND))
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(Path(folder), given))
    print("\n".join(wrong) or "everything is accounted for, and nothing is left")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
