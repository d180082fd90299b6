"""Hostile clients: what slow, silent, stalled and greedy connections cost those beside them.

`python -m benchmarks.hostile_clients [--only NAME]`. Twenty clients read streams, alone and then beside each attack in
turn. For each attack: after how many seconds the last of its connections is freed, by how much the memory of the
server's processes grew at most, and the 99th percentile of the time between two chunks of the good streams, less that
when alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.gateway import KEY, server

CONFIG = """
[server]
keys_env = "BENCH_KEY"
[backends.s]
kind = "scripted"
context_length = 1000000
[backends.s.scripts]
good = { texts = ["The quick brown fox jumps over the lazy dog."], repeat = 10000, interval = 0.02 }
""" + "".join(
    f'[endpoints.{name}]\nserved_entities = [{{ name = "{name}", backend = "s" }}]\n' for name in ("good", "long")
)
LONG = '[backends.s.scripts.long]\ntokens = [{ id = 1, text = "' + "x" * 65536 + '" }]\nrepeat = 400\n'
GOOD = 20
ALONE = 8.0
"""Seconds for which the good streams are measured alone."""
CHAT = "/v1/chat/completions"
ROUTES = (
    *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/generate", "/generate_stream"),
    *("/v1/feedback", "/v2/models/good/generate", "/serving-endpoints/good/invocations", "/tokenize", "/health"),
)
HEAD = "POST {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer " + KEY + "\r\ncontent-type: application/json\r\n"


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ATTACKS, action="append", help="an attack; may be repeated")
    attacks = parser.parse_args().only or ATTACKS
    with server(CONFIG.replace("[endpoints.good]", LONG + "[endpoints.good]")) as (pid, port):
        alone = asyncio.run(_beside(pid, port, None))[2]
        print(f"alone: p99 of gaps {alone * 1e3:.1f} ms")
        for name in attacks:
            freed, grown, gap = asyncio.run(_beside(pid, port, name))
            added = (gap - alone) * 1e3
            print(f"{name:20} freed after {freed:5.1f} s, memory +{grown / 1e6:5.1f} MB, p99 of gaps {added:+6.1f} ms")


async def _beside(pid: int, port: int, attack: str | None) -> tuple[float, float, float]:
    """Seconds until an attack's connections were freed, bytes of memory gained, and the p99 of the good gaps."""
    times: list[list[float]] = [[] for _ in range(GOOD)]
    good = [asyncio.create_task(_read_stream(port, each)) for each in times]
    await asyncio.sleep(2.0)
    for each in times:
        each.clear()
    before = most = _memory(pid)
    process = None
    if attack is not None:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=_run, args=(port, attack, begun := spawn.Event()))
        process.start()
        await asyncio.to_thread(begun.wait)  # its imports take a part of a second
    began = time.monotonic()
    while process.is_alive() if process is not None else time.monotonic() < began + ALONE:
        await asyncio.sleep(0.1)
        most = max(most, _memory(pid))
    freed = time.monotonic() - began
    for task in good:
        task.cancel()
    await asyncio.wait(good)
    gaps = sorted(later - earlier for each in times for earlier, later in pairwise(each))
    return freed, most - before, gaps[int(len(gaps) * 0.99)]


async def _read_stream(port: int, times: list[float]) -> None:
    reader, writer = await _ask(port, CHAT, "good", max_tokens=100_000)
    try:
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
    finally:
        writer.close()


async def _ask(port: int, path: str, model: str, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True} | fields)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{HEAD.format(path)}content-length: {len(body)}\r\n\r\n{body}".encode())
    return reader, writer


def _memory(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total + sum(_memory(int(child)) for child in children)


def _run(port: int, attack: str, begun: Event) -> None:
    begun.set()
    asyncio.run(ATTACKS[attack](port))


async def _drip(port: int, begin: str, pause: float) -> None:
    """Send a beginning and then a byte now and then, until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin.encode())
    reading = asyncio.create_task(reader.read())
    while not reading.done():
        await asyncio.wait([reading], timeout=pause)
        writer.write(b"x")
    writer.close()


async def _slow_heads(port: int) -> None:
    await asyncio.gather(*(_drip(port, "G", 5.0) for _ in range(500)))


async def _slow_bodies(port: int) -> None:
    begin = "content-length: 1000\r\n\r\n{"
    routes = (ROUTES[number % len(ROUTES)] for number in range(300))
    await asyncio.gather(*(_drip(port, HEAD.format(route) + begin, 1.0) for route in routes))


async def _stalled_readers(port: int) -> None:
    opened = [await _ask(port, CHAT, "long", max_tokens=100_000) for _ in range(100)]
    for _, writer in opened:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    while await _running(port) > GOOD:  # noqa: ASYNC110 - a metric has no event
        await asyncio.sleep(0.1)


async def _running(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = HEAD.format("/metrics").replace("POST", "GET", 1)
    writer.write(f"{head}connection: close\r\n\r\n".encode())
    found = re.search(rb"^gw_requests_running ([\d.]+)", await reader.read(), re.MULTILINE)
    writer.close()
    return float(found[1]) if found else 0.0


async def _pipelined(port: int) -> None:
    # What is written behind the connection's last request gets no answer.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100_000)
    while await reader.read(1 << 20):
        pass
    writer.close()


async def _large_headers(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 20_000_000 + b"\r\n\r\n")
    assert b" 431 " in (await reader.read())[:20]
    writer.close()


ATTACKS: dict[str, Callable[[int], Coroutine[Any, Any, None]]] = {
    "500 slow heads": _slow_heads,
    "300 slow bodies": _slow_bodies,
    "100 stalled readers": _stalled_readers,
    "100,000 in a row": _pipelined,
    "20 MB of headers": _large_headers,
}


if __name__ == "__main__":
    main()
