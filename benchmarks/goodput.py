"""Goodput under overload: complete answers per second at three times the peak rate, relative to the peak.

`python -m benchmarks.goodput [--remote]`. With `--remote`, the model is an upstream that answers eight requests at a
time, and clients give up after 2 s; else it is the bundled one. Requests arrive in an open loop, as a Poisson process,
at a rate that grows until no more are answered: that is the peak. Then they arrive at three times this rate, and two of
three must be refused quickly and cheaply. An answer counts if it is complete and came while requests were arriving.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter

from benchmarks.gateway import KEY, server
from benchmarks.remote import upstream

CONFIG = """
[server]
keys_env = "BENCH_KEY"
[backends.local]
kind = "native"
[endpoints.m]
served_entities = [{ name = "m", backend = "local" }]
"""
REMOTE = """
[server]
keys_env = "BENCH_KEY"
[backends.far]
kind = "openai"
url = "http://127.0.0.1:{port}/v1"
limits = {{ connections = 8, queue_timeout = 0.25 }}
[endpoints.limited]
served_entities = [{{ name = "limited", backend = "far" }}]
"""
SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
FIRST, GROWTH, MAX_STEPS = 50.0, 1.4, 12
"""The first rate in requests per second, its growth factor, and the most steps."""
OVERLOAD = 3
CLIENT_TIMEOUT = {"m": 10.0, "limited": 2.0}
"""Seconds after which a client gives up, by model."""
BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40, "temperature": 0}
"""A request whose answer always has `max_tokens` tokens."""

Ended = Counter[str]


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", action="store_true")
    if not parser.parse_args().remote:
        with server(CONFIG) as (_, port):
            _measure(port, "m")
        return
    with upstream() as far, server(REMOTE.format(port=far)) as (_, port):
        _measure(port, "limited")


def _measure(port: int, model: str) -> None:
    asyncio.run(_offer(port, model, FIRST))  # warm up
    peak = 0.0
    for step in range(MAX_STEPS):
        offered = FIRST * GROWTH**step
        served, _ = asyncio.run(_offer(port, model, offered))
        print(f"{offered:6.0f} requests/s: {served:6.0f} answers/s")
        peak = max(peak, served)
        if served < offered / GROWTH:
            break
    served, ended = asyncio.run(_offer(port, model, peak * OVERLOAD))
    print(f"{peak * OVERLOAD:6.0f} requests/s: {served:6.0f} answers/s, {served / peak:.2f} of the peak (goal 0.90)")
    print(dict(ended))


async def _offer(port: int, model: str, rate: float) -> tuple[float, Ended]:
    """Complete answers per second at `rate` requests per second, and the outcomes of all requests."""
    ended: Ended = Counter()
    rng = random.Random(1)
    until = time.perf_counter() + SECONDS
    in_time = 0

    async def caller() -> None:
        nonlocal in_time
        how = await _ask(port, model)
        ended[how] += 1
        in_time += how == "whole" and time.perf_counter() < until

    async with asyncio.TaskGroup() as callers:
        due = time.perf_counter()
        while due < until:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            callers.create_task(caller())
    return in_time / SECONDS, ended


async def _ask(port: int, model: str) -> str:
    """Send a request; return its outcome."""
    body = json.dumps(BODY | {"model": model}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    )
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT[model]):
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
