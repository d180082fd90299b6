"""What open tabs of the console cost a gateway that answers requests: CPU time of its processes, with and without tabs.

    python -m benchmarks.console [--tabs 10] [--rate 200] [--seconds 10] [--rounds 6] [--stream]

Starts the real server with the scripted backend and asks it at a constant rate. In turns, no tab is open, or several
are: each holds its stream of events with the topics of a view, and reads what the view reads when an event says so. The
views that send the most are as many as the others. CPU time, not latency: the ratio holds on a noisy machine.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import httpx

from benchmarks.gateway import KEY, descendants, server, written

CONFIG = """
[server]
keys_env = "BENCH_KEY"
limits = { max_requests_per_connection = 1000000 }
[backends.s]
kind = "scripted"
[backends.s.scripts]
text = { texts = ["The quick brown fox jumps over the lazy dog."], burst = 64 }
[endpoints.pair]
served_entities = [
  { name = "a", backend = "s", model = "text", traffic_percentage = 50 },
  { name = "b", backend = "s", model = "text", traffic_percentage = 50 },
]
"""
VIEWS = ("live", "requests", "experiments", "")
"""The topics of a tab's stream, by turns; "" is a view without any, such as the chat."""
_CONNECTIONS = 16
_SETTLE = 1.5
"""Seconds before a turn is measured: tabs open, and what was begun ends."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--rate", type=int, default=200, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10, help="of a turn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--stream", action="store_true", help="streamed answers instead of whole ones")
    given = parser.parse_args()
    with server(CONFIG) as (pid, port):
        found = asyncio.run(turns(pid, port, given.tabs, given.rate, given.seconds, given.rounds, stream=given.stream))
    print(f"{given.rate} {'streams' if given.stream else 'whole answers'} a second; CPU ms of the server a second:")
    for without, with_tabs in found:
        print(f"  no tab {1e3 * without:7.2f}   {given.tabs} tabs {1e3 * with_tabs:7.2f}   {with_tabs / without:.4f}")
    ratio = median(with_tabs / without for without, with_tabs in found)
    whole = sum(with_tabs for _, with_tabs in found) / sum(without for without, _ in found)
    print(f"median of the ratios {ratio:.4f}, ratio of the sums {whole:.4f}")


async def turns(
    pid: int, port: int, tabs: int, rate: int, seconds: float, rounds: int, *, stream: bool
) -> list[tuple[float, float]]:
    """CPU seconds of the server a second: without and with tabs, for each round. Every other round begins with tabs."""
    load = asyncio.create_task(_load(port, rate, stream=stream))
    found = []
    await asyncio.sleep(_SETTLE)
    for number in range(rounds):
        order = (tabs, 0) if number % 2 else (0, tabs)
        measured = {opened: await _turn(pid, port, opened, seconds) for opened in order}
        found.append((measured[0], measured[tabs]))
        if load.done():
            break
    load.cancel()
    with suppress(asyncio.CancelledError):
        await load  # raises what went wrong
    return found


async def _turn(pid: int, port: int, tabs: int, seconds: float) -> float:
    headers = {"authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, limits=limits
    ) as client:
        opened = [asyncio.create_task(_tab(client, topics)) for topics in islice(cycle(VIEWS), tabs)]
        await asyncio.sleep(_SETTLE)
        loop, before = asyncio.get_running_loop(), _cpu(pid)
        began = loop.time()
        await asyncio.sleep(seconds)
        used = (_cpu(pid) - before) / (loop.time() - began)
        for tab in opened:
            assert not tab.done(), tab.exception()
            tab.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
    return used


async def _tab(client: httpx.AsyncClient, topics: str) -> None:
    """A tab: it reads its stream, and the report of the experiment when the stream says that there is a new one."""
    async with client.stream("GET", "/v1/console/events", params={"topics": topics} if topics else {}) as answer:
        answer.raise_for_status()
        event = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: ") and event == "experiments":
                asked = {"endpoint": "pair", "shared": ""}
                (await client.get("/v1/console/experiment", params=asked)).raise_for_status()
    raise RuntimeError("the stream of a tab ended")


async def _load(port: int, rate: int, *, stream: bool) -> None:
    """Requests at a constant rate; those that are late follow at once."""
    request = written("pair", "openai", stream=stream)
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), iter(range(10**9))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        for number in sent:
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            if b"content-length: " in head:
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")

    await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))


def _cpu(pid: int) -> float:
    """CPU seconds of a process and its descendants, by the scheduler's clock: a tick of `stat` is too coarse here."""
    threads = [task for each in (pid, *descendants(pid)) for task in Path(f"/proc/{each}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads) / 1e9


if __name__ == "__main__":
    main()
