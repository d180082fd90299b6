"""What a hit in the cache of answers costs: `python -m benchmarks.answer_cache [--requests 1000] [--rounds 15]`.

The worker's own code from a client's bytes to the answer's bytes, without sockets (`benchmarks.budget`): CPU time of a
whole answer from the cache and of the same request to the scripted backend, in turns. The key, the log line and metrics
are on; the line goes to `/dev/null`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.budget import Client
from benchmarks.gateway import KEY
from gateway.app import create_app
from gateway.config.file import parse
from gateway.observability import logging

CONFIG = """
[server]
keys_env = "BENCH_KEY"
limits = { max_requests_per_connection = 1000000 }
[backends.scripted]
kind = "scripted"
[backends.scripted.scripts]
whole = { texts = ["The quick brown fox jumps over the lazy dog."], burst = 64 }
[endpoints.cached]
cache = {}
served_entities = [{ name = "whole", backend = "scripted" }]
[endpoints.asked]
served_entities = [{ name = "whole", backend = "scripted" }]
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    os.environ["BENCH_KEY"] = KEY
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - the log, until the process ends
    logging.configure()
    asyncio.run(measure(given.requests, given.rounds))


async def measure(requests: int, rounds: int) -> None:
    """Print CPU microseconds of an answer, with the cache and without it."""
    config = parse(CONFIG)
    costs: dict[str, list[float]] = {"cached": [], "asked": []}
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(config, folder=Path(folder), slot="cache")
        async with app.lifespan():
            client = Client(app, config)
            for _ in range(rounds + 1):
                for name, taken in costs.items():
                    began = time.process_time()
                    await client.ask(_written(name), b"}", requests)
                    taken.append((time.process_time() - began) / requests * 1e6)
    for name, (_, *taken) in costs.items():  # the first round fills the cache and warms up
        print(f"{name:6} {median(taken):6.1f} µs a request (least {min(taken):.1f})")


def _written(model: str) -> bytes:
    message = '[{"role":"user","content":"What is the capital of France?"}]'
    body = f'{{"model":"{model}","messages":{message},"temperature":0}}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


if __name__ == "__main__":
    main()
