"""How exact limits are, and what they cost: `python -m benchmarks.limits [--seconds 599] [--clients 64]`.

Clients with two keys ask four workers as fast as they may, and wait as the server says when it refuses. Each key has a
limit of requests and one of tokens. A window slides, so that in ten minutes less a second a saturated limit lets pass
ten times its number. The cost is that of all that a key and its limits add to a request, in one process: the key is
found and given its share of the places, two limits are checked and corrected, and the answer's six headers are written.
At the end a key is revoked, and the time is taken until as many connections, over all workers, are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median

import httpx

from adapters.rate_limits import openai_limit_headers
from benchmarks.gateway import cpu_seconds, server
from gateway.access.keys import Keys
from gateway.access.keys_file import keys_file, new_key, revoke_key
from gateway.access.local_limiter import LocalLimiter
from gateway.access.rules import RuleTable, estimated_tokens
from gateway.config import Limit
from gateway.routing.shares import Shares
from schemas.ir import Generate, Stopping
from schemas.prompts import ChatPrompt, Message

LIMITS = {"requests": (Limit(requests=600),), "tokens": (Limit(tokens=20_000),)}
"""By the name of a key, by the minute. Each key saturates its limit."""
CONFIG = """
[server]
workers = 4
keys_file = "{file}"
[backends.scripted]
kind = "scripted"
[backends.scripted.scripts]
whole = {{ texts = ["The quick brown fox jumps over the lazy dog."], burst = 64 }}
[endpoints.whole]
served_entities = [{{ name = "whole", backend = "scripted" }}]
"""
BODY = {"model": "whole", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 32}
ROUNDS, CALLS = 100, 200


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=599.0)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"key and limits  {asyncio.run(cost(Path(folder, 'cost.json')))} a request")
        file = Path(folder, "keys.json")
        keys = {name: new_key(keys_file(file), name, limits=limits) for name, limits in LIMITS.items()}
        with server(CONFIG.format(file=file)) as (pid, port):
            before = cpu_seconds(pid)
            passed, refused = asyncio.run(drive(port, keys, given.clients, given.seconds))
            windows = -(-given.seconds // 60)
            for name, (limit,) in LIMITS.items():
                most = windows * (limit.requests or limit.tokens or 0)
                print(f"{name:9} {passed[name]:7} of {most:7.0f} allowed: {passed[name] / most:.4f}")
            print(f"{refused} requests refused, {cpu_seconds(pid) - before:.1f} s CPU of the server")
            revoke = partial(revoke_key, keys_file(file), "requests")
            taken = asyncio.run(revoked(port, keys["requests"], revoke, given.clients))
            print(f"a revoked key is refused after {taken:.2f} s")


async def drive(port: int, keys: dict[str, str], clients: int, seconds: float) -> tuple[Counter[str], int]:
    """What passed by the name of the key, in the limit's unit, and how many requests were refused."""
    passed: Counter[str] = Counter()
    refused = 0
    end = time.monotonic() + seconds

    async def ask(name: str) -> None:
        nonlocal refused
        headers = {"authorization": f"Bearer {keys[name]}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            while time.monotonic() < end:
                answer = await client.post("/v1/chat/completions", json=BODY)
                if answer.status_code == 200:
                    passed[name] += answer.json()["usage"]["total_tokens"] if name == "tokens" else 1
                    continue
                assert answer.status_code == 429, answer.text
                refused += 1
                # No longer than a second: whoever waits as long as the server says finds others in the way.
                await asyncio.sleep(min(float(answer.headers["retry-after"]), 1.0, max(0.0, end - time.monotonic())))

    await asyncio.gather(*(ask(list(keys)[place % len(keys)]) for place in range(clients)))
    return passed, refused


async def revoked(port: int, key: str, revoke: Callable[[], None], clients: int) -> float:
    """Seconds from the revocation of a key until each of some connections is refused."""
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}"
    opened = [httpx.AsyncClient(base_url=url, headers=headers, timeout=60) for _ in range(clients)]

    async def refused(client: httpx.AsyncClient) -> float:
        while (await client.get("/v1/models")).status_code != 401:  # noqa: ASYNC110 - what is measured
            await asyncio.sleep(0.05)
        return time.monotonic()

    async with AsyncExitStack() as stack:
        for client in opened:
            await stack.enter_async_context(client)
            (await client.get("/v1/models")).raise_for_status()
        revoke()
        began = time.monotonic()
        return max(await asyncio.gather(*map(refused, opened))) - began


async def cost(file: Path) -> str:
    """CPU microseconds of a key with two limits for one request: the median and the least of the rounds."""
    text = new_key(keys_file(file), "team", limits=(Limit(requests=10**9, tokens=10**12),))
    keys, limiter = Keys(file=file), LocalLimiter(file.with_suffix(".limits"), file.parent)
    shares, table = Shares(64), RuleTable({})
    headers = {"authorization": f"Bearer {text}"}
    prompts = (ChatPrompt((Message("user", "x" * 400),)),)
    request = Generate(id="", model="chat", prompts=prompts, stopping=Stopping(max_new_tokens=100))
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            key = keys.check(headers)
            assert key is not None
            shares.enter(key.digest)
            rules = table.of(key, "chat", None)
            assert rules is not None
            ticket = await limiter.enter(rules, estimated_tokens(request) if rules.by_tokens else 0)
            openai_limit_headers(ticket.quotas)
            limiter.leave(ticket, 150, 0.0)
            shares.leave(key.digest)
        rounds.append((time.process_time() - began) / CALLS * 1e6)
    await limiter.aclose()
    return f"{median(rounds):5.1f} µs (least {min(rounds):.1f})"


if __name__ == "__main__":
    main()
