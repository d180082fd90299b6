"""Memory of one worker per connection of a client: `python -m benchmarks.connections [--idle 10000] [--streams 2000]`.

Idle connections have had one answer each and are kept open; streams have had their first chunk and wait for the next
one, each with a connection to the upstream behind it. The resident memory of the worker before and after, divided by
the number of connections, with that of an unused worker beside it. The kernel's own buffers are not in it. A worker
accepts half as many connections as it may open files: the limit (`ulimit -Hn`) is to be above twice their number.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gateway import descendants, free_port, server, written
from benchmarks.upstream import CannedAnswers

CONFIG = """
[server]
keys_env = "BENCH_KEY"
limits = {{ max_connections = 60000, max_concurrent_requests = 60000 }}
[backends.far]
kind = "openai"
url = "http://127.0.0.1:{port}/v1"
limits = {{ connections = 60000, waiting = 60000 }}
[endpoints.whole]
served_entities = [{{ name = "whole", backend = "far" }}]
[endpoints.held]
served_entities = [{{ name = "held", backend = "far" }}]
"""
_AT_ONCE = 50
"""Connections that are opened at a time: more than the listening socket's queue would be reset."""
_SPARE_FILES = 400
"""Of a worker beside its connections: those that are opened first, the engine's socket, files."""
_CHUNK = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Upstream(CannedAnswers):
    """The canned upstream, whose streams of `held` stop after their first chunk."""

    def data_received(self, data: bytes) -> None:
        """Answer."""
        if b'"held"' in data:
            self._transport.write(b"%b%x\r\n%b\r\n" % (_STREAM, len(_CHUNK), _CHUNK))
        else:
            super().data_received(data)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=2_000)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (needed := 2 * max(given.idle, given.streams) + _SPARE_FILES) > most:
        sys.exit(f"Each process may open {most} files (`ulimit -Hn`), and {needed} are needed.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(measure(given.idle, given.streams))


async def measure(idle: int, streams: int) -> None:
    """Measure both, each with a worker of its own."""
    for model, count in (("whole", idle), ("held", streams)):
        far = free_port()
        upstream = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", far, backlog=1024)
        with ExitStack() as stack:
            # In a thread: the upstream, which the server asks at its start, answers in this one.
            pid, port = await asyncio.to_thread(stack.enter_context, server(CONFIG.format(port=far)))
            await _report(pid, port, model, count)
            await asyncio.to_thread(stack.close)
        upstream.close()


async def _report(pid: int, port: int, model: str, count: int) -> None:
    worker = max([pid, *descendants(pid)], key=resident)
    clients = [await opened(port, model) for _ in range(_AT_ONCE)]  # what is allocated once is not counted
    before, began = resident(worker), time.perf_counter()
    for _ in range(count // _AT_ONCE):
        clients += await asyncio.gather(*(opened(port, model) for _ in range(_AT_ONCE)))
    after, made = resident(worker), len(clients) - _AT_ONCE
    kind, took = "idle" if model == "whole" else "streaming", time.perf_counter() - began
    print(f"{made} connections, {kind}: {(after - before) / made:.1f} kB each, opened in {took:.0f} s")
    print(f"    the worker: {before / 1024:.0f} MB before, {after / 1024:.0f} MB after")
    for writer in clients:
        writer.close()


async def opened(port: int, model: str) -> asyncio.StreamWriter:
    """A connection that has had its answer, or the first chunk of one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(written(model, "openai", stream=model == "held"))
    await reader.readuntil(b"data: " if model == "held" else b"}}")
    return writer


def resident(process: int) -> int:
    """The resident memory of a process in kB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


if __name__ == "__main__":
    main()
