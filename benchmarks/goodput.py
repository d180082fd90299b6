"""What overload costs: whole answers a second at three times what the bundled model can do, beside the most it can do.

`python -m benchmarks.goodput`. Requests come by themselves, at random times, at a rate that grows until no more are
answered: that is the peak. Then three come for each that could be answered, and two of them are to be told so soon and
cheaply. An answer counts if it is whole and came while requests still did.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter

from benchmarks.gateway import KEY, server

CONFIG = """
[server]
keys_env = "BENCH_KEY"
[backends.local]
kind = "native"
[endpoints.m]
served_entities = [{ name = "m", backend = "local" }]
"""
SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
FIRST, GROWTH, MOST = 50.0, 1.4, 12
"""The first rate, how fast it grows, and how often at most."""
OVERLOAD = 3
PATIENCE = 10.0
"""Seconds after which nobody waits for an answer any more."""
BODY = {"model": "m", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40, "temperature": 0}
"""A request, and a limit that its answer always reaches."""

Ended = Counter[str]


def main() -> None:
    """Run and print."""
    with server(CONFIG) as (_, port):
        asyncio.run(_offer(port, FIRST))  # warm up
        peak = 0.0
        for step in range(MOST):
            offered = FIRST * GROWTH**step
            served, _ = asyncio.run(_offer(port, offered))
            print(f"{offered:6.0f} requests/s: {served:6.0f} answers/s")
            peak = max(peak, served)
            if served < offered / GROWTH:
                break
        served, ended = asyncio.run(_offer(port, peak * OVERLOAD))
    print(f"{peak * OVERLOAD:6.0f} requests/s: {served:6.0f} answers/s, {served / peak:.2f} of the peak (goal 0.90)")
    print(dict(ended))


async def _offer(port: int, rate: float) -> tuple[float, Ended]:
    """Whole answers a second at so many requests a second, and how all of them ended."""
    ended: Ended = Counter()
    chance = random.Random(1)
    until = time.perf_counter() + SECONDS
    in_time = 0

    async def caller() -> None:
        nonlocal in_time
        how = await _ask(port)
        ended[how] += 1
        in_time += how == "whole" and time.perf_counter() < until

    async with asyncio.TaskGroup() as callers:
        due = time.perf_counter()
        while due < until:
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            callers.create_task(caller())
    return in_time / SECONDS, ended


async def _ask(port: int) -> str:
    """How a request ended."""
    body = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
            writer.close()
    except TimeoutError:
        return "too late"
    status = answer[9:12].decode()
    if status != "200":
        return f"{status} with retry-after" if b"retry-after:" in answer.lower() else status
    return "whole" if json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["finish_reason"] else "cut"


if __name__ == "__main__":
    main()
