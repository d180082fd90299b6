"""The soak's faults: kills, stops and reloads, dealt like cards, so that a run has as many of each as it is to have."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

from benchmarks.soak.server import Server

ROUND = (
    *(2 * ("kill worker", "kill engine")),
    "kill supervisor",
    "stop worker",
    "stop engine",
    "stop supervisor",
    "reload",
)
"""Five kills, three stops and a reload."""
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_PAUSE = 0.1
_STOPPED = 15.0
"""Seconds for which the supervisor is stopped: longer than `hung_after` of its workers. Nobody replaces it."""


async def disturb(server: Server, rounds: int, seconds: float, done: Counter[str]) -> None:
    """Do all faults of so many rounds, each round in an order of its own, spread over some seconds.

    Args:
        server: the victim.
        rounds: how many.
        seconds: for all of them. A fault whose victim does not run yet waits for it, and those behind it, too.
        done: counts the faults.
    """
    chance = random.Random(1)
    faults = [fault for _ in range(rounds) for fault in chance.sample(ROUND, len(ROUND))]
    began = time.monotonic()
    for number, fault in enumerate(faults, 1):
        await asyncio.sleep(began + number * seconds / len(faults) - time.monotonic())
        await _do(server, fault, chance)
        done[fault] += 1


async def _do(server: Server, fault: str, chance: random.Random) -> None:
    if fault == "reload":
        server.reload()
        return
    verb, victim = fault.split()
    if fault == "kill supervisor":
        await server.kill()
        return
    if fault == "stop supervisor":
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(_STOPPED)
        os.kill(server.pid, signal.SIGCONT)
        return
    while not (pids := server.of(victim)):  # noqa: ASYNC110 - processes have no event
        await asyncio.sleep(_PAUSE)
    with suppress(ProcessLookupError):  # it has just ended by itself: a fault all the same
        os.kill(chance.choice(pids), _SIGNALS[verb])
