"""CPU cost of the gateway in front of a remote server, per request and per chunk.

    python -m benchmarks.remote [--requests 3000] [--connections 16]

Like `benchmarks.gateway`, but with an upstream in a process of its own (`benchmarks.upstream`), whose CPU time is not
counted. Answers are decoded and encoded again; keys, log lines and metrics are on.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gateway import free_port, report, server, steady, written

ROUNDS = 5
MODELS = ("whole", "single", "bursts", "paced")
CONFIG = """
[server]
keys_env = "BENCH_KEY"
limits = {{ max_requests_per_connection = 1000000 }}
[backends.far]
kind = "openai"
url = "http://127.0.0.1:{port}/v1"
{endpoints}
"""
_ENDPOINT = """
[endpoints.{name}]
served_entities = [{arms}]
{more}
[[server.mounts]]
prefix = "/{name}"
endpoint = "{name}"
"""
_ONE = '{{ name = "{name}", backend = "far" }}'
_ARMS = ", ".join(
    f'{{{{ name = "{{name}}-{arm}", backend = "far", model = "{{name}}", traffic_percentage = 50 }}}}' for arm in "ab"
)
_KEY_LIMITS = 'limits = [{ per = "key", requests = 100000000, tokens = 100000000000 }]'


def configured(port: int, *, everything: bool = False) -> str:
    """The configuration of a gateway in front of the upstream on a port.

    Args:
        port: the upstream's.
        everything: whether endpoints have an experiment with two arms, and limits that nobody reaches.
    """
    arms, more = (_ARMS, _KEY_LIMITS) if everything else (_ONE, "")
    endpoints = [_ENDPOINT.format(name=name, arms=arms.format(name=name), more=more) for name in MODELS]
    return CONFIG.format(port=port, endpoints="".join(endpoints))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=16)
    given = parser.parse_args()
    with upstream() as far, server(configured(far)) as (pid, port):
        report(pid, port, given.requests, given.connections, " over openai,")
        for model, what, requests in (("single", "alone", 100), ("bursts", "with nine more", 10)):
            here, there = (asyncio.run(first_bytes(at, model, given.requests // requests)) for at in (port, far))
            print(f"first token, one connection, {what:14} {here - there:.2f} ms added to {there:.2f} ms (medians)")
        rates: dict[int, list[float]] = {32: [], 512: []}
        for _ in range(ROUNDS):  # interleaved, so that drift of the machine affects both alike
            for connections, measured in rates.items():
                measured.append(asyncio.run(steady(port, "whole", given.requests, connections)))
        for connections, measured in rates.items():
            print(f"{connections:3} connections {statistics.median(measured):12.0f} answers/s (median of {ROUNDS})")


async def first_bytes(port: int, model: str, requests: int) -> float:
    """The median time in ms to the first event of a stream, one request after another."""
    request = written(model, "openai", stream=True)
    times: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    for _ in range(requests):
        began = time.perf_counter()
        writer.write(request)
        await reader.readuntil(b"data: ")
        times.append((time.perf_counter() - began) * 1e3)
        await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    return statistics.median(times)


@contextmanager
def upstream() -> Iterator[int]:
    """Run the canned upstream; yields its port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.upstream", str(port)])
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
                break
            except OSError:
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main()
