"""Isolation of hostile grammars: the time between a stream's tokens while another client sends such grammars.

`python -m benchmarks.hostile`, beside `python -m benchmarks.grammar`. The bundled model streams to one client, in turns
alone, beside another client with ordinary requests, beside a process that only computes, and beside a client that sends
hostile schemas and regular expressions back to back, no two the same. The ordinary requests have as many tokens, and
arrive at the rate at which the hostile ones were answered, or back to back. They and the computing process are the
controls: their effect is not caused by grammars.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any

from benchmarks.gateway import KEY, server

CONFIG = """
[server]
keys_env = "BENCH_KEY"
[backends.local]
kind = "native"
[endpoints.m]
served_entities = [{ name = "m", backend = "local" }]
"""
ROUNDS = 7
SECONDS = 3.0
TOKENS = 20
"""The most tokens of a request beside the stream."""
STREAMED = 60
SITUATIONS = ("alone", "same rate", "back to back", "computing", "hostile")
REGEXES = (
    "(a{300}){300}",
    "[a-z]{3}(a{300}){300}",
    "((a{30}){30}){90}",
    "x{1,90000}",
    "[ab]*a[ab]{2000}",
    "(.*a.{100}|.*b.{99}|.*c.{98})*",
    "(a?){5000}a{5000}",
    r"(\p{L}|\p{N}|\w){2000}",
    "(a{1000}){1000}",
    "[" * 50_000,
    "(a*)*(?=b)",
)
REFERENCE = {"$ref": "#/$defs/a"}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": 1000 + n} for n in range(1000)}},
    {"type": "object", "properties": {f"p{n}": {"multipleOf": 991 + n} for n in range(9)}, "required": ["p0", "p1"]},
    {"type": "integer", "multipleOf": 9_999_991},
    {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (997, 991)]},
    {"type": "array", "items": REFERENCE, "$defs": {"a": {"anyOf": [{"type": "array", "items": REFERENCE}] * 200}}},
    {"enum": [f"{n}" * 5 for n in range(2000)]},
    {"type": "string", "pattern": "^(a{300}){300}$"},
    {"examples": [1] * 70_000},
    {"anyOf": [{}] * 16_000},
)


def main() -> None:
    """Run the benchmark and print its results."""
    with server(CONFIG) as (_, port):
        _measure(port)


def _measure(port: int) -> None:
    gaps: dict[str, list[list[float]]] = {what: [] for what in SITUATIONS}
    rate, answered = 1.0, 0
    for place in range(-1, ROUNDS):  # the first round only warms up and finds a rate
        for what in SITUATIONS[:: place % 2 or -1]:
            with _beside(port, what, rate, first=answered) as count:
                found = asyncio.run(_gaps(port))
                if what == "hostile":
                    answered += count.value + 1  # and the one that is still running
                    rate = answered / (place + 2) / SECONDS
            if place >= 0:
                gaps[what].append(found)
    print(f"a stream beside {rate:.1f} requests/s of up to {TOKENS} tokens, {ROUNDS} rounds:")
    print("times between its tokens, and what they are of those when alone in the same round")
    for what, rounds in gaps.items():
        _print_line(what, rounds, gaps["alone"])


def _print_line(what: str, rounds: list[list[float]], alone: list[list[float]]) -> None:
    columns = []
    for name, part in (("median", 0.5), ("p95", 0.95), ("largest", 1.0)):
        found = [_quantile(some, part) for some in rounds]
        ratios = [one / other for one, other in zip(found, (_quantile(some, part) for some in alone), strict=True)]
        columns.append(f"{name} {statistics.median(found) * 1e3:6.1f} ms ({statistics.median(ratios):.2f} times)")
    print(f"{what:12}", "   ".join(columns))


def _quantile(found: list[float], part: float) -> float:
    return sorted(found)[min(len(found) - 1, int(part * len(found)))]


async def _gaps(port: int) -> list[float]:
    """The seconds between a stream's tokens."""
    gaps: list[float] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        times = [time.perf_counter() async for _ in _events(port, _body(STREAMED, stream=True))]
        gaps += [later - earlier for earlier, later in pairwise(times[1:])]
    return gaps


@contextmanager
def _beside(port: int, what: str, rate: float, first: int) -> Iterator[Any]:
    """Run a situation in another process; yields its number of answered requests so far."""
    context = multiprocessing.get_context("spawn")
    answered = context.Value("i", 0)
    process = context.Process(target=_act, args=(port, what, rate, first, answered))
    process.start()
    while not answered.value:
        time.sleep(0.01)
    answered.value = 0
    try:
        yield answered
    finally:
        process.terminate()
        process.join()


def _act(port: int, what: str, rate: float, first: int, answered: Any) -> None:
    """Send requests, compute, or do nothing."""

    async def send() -> None:
        for number in count(first):
            body = _hostile(number) if what == "hostile" else _body(TOKENS)
            due = time.perf_counter() + (1 / rate if what == "same rate" else 0.0)
            async for _ in _events(port, body):
                pass
            answered.value += 1
            await asyncio.sleep(due - time.perf_counter())

    if what not in ("alone", "computing"):
        asyncio.run(send())
    answered.value = 1
    while what == "computing":
        pass
    time.sleep(SECONDS * 10)


async def _events(port: int, body: dict[str, Any]) -> AsyncIterator[bytes]:
    """The data lines of a streamed answer."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        async for line in reader:
            if line.startswith(b"data: {"):
                yield line
    finally:
        writer.close()


def _body(tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Tell me a story."}
    return {"model": "m", "messages": [message], "max_tokens": tokens, "temperature": 0} | fields


def _hostile(number: int) -> dict[str, Any]:
    """A request with a hostile grammar, made unique by `number`, so that no cache has it."""
    grammar = (REGEXES + SCHEMAS)[number % (len(REGEXES) + len(SCHEMAS))]
    if isinstance(grammar, str):
        return _body(TOKENS, response_format={"type": "regex", "value": f"({grammar}){number}"})
    schema = {"name": "s", "schema": grammar | {"title": str(number)}}
    return _body(TOKENS, response_format={"type": "json_schema", "json_schema": schema})


if __name__ == "__main__":
    main()
