"""The gateway's own cost: CPU time of its processes per request and per chunk, with the scripted backend.

    python -m benchmarks.gateway [--requests 3000] [--connections 16]

Starts the real server on a free port and drives it over keep-alive connections from this process. Authentication, the
log line and metrics are on. CPU time, not latency: these figures hold on a noisy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = (
    """
[server]
keys_env = "BENCH_KEY"
limits = { max_requests_per_connection = 1000000 }
[backends.scripted]
kind = "scripted"
[backends.scripted.scripts]
whole = { texts = ["The quick brown fox jumps over the lazy dog."], burst = 64 }
single = { texts = ["The quick brown fox jumps over the lazy dog."], repeat = 20 }
bursts = { texts = ["The quick brown fox jumps over the lazy dog."], repeat = 20, burst = 10 }
"""
    + "".join(
        f'[endpoints.{name}]\nserved_entities = [{{ name = "{name}", backend = "scripted" }}]\n'
        for name in ("whole", "single", "bursts")
    )
    + "".join(f'[[server.mounts]]\nprefix = "/{name}"\nendpoint = "{name}"\n' for name in ("whole", "single", "bursts"))
)
KEY = "bench"
_CPUCLOCK_SCHED = 2
"""Of `<linux/posix-timers.h>`: a process's clock has the number `~pid << 3 | _CPUCLOCK_SCHED`."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=16)
    given = parser.parse_args()
    with server() as (pid, port):
        report(pid, port, given.requests, given.connections)


def report(pid: int, port: int, requests: int, connections: int, over: str = "") -> None:
    """Print the cost of whole answers and of chunks by protocol; `over` names the backend."""
    asyncio.run(drive(port, "whole", 300, connections, stream=False))  # warm up
    for protocol in BODIES:
        cpu, done, _ = measure(pid, port, "whole", requests, connections, protocol, stream=False)
        print(f"{protocol:12}{over} whole answer         {cpu / done * 1e3:7.3f} ms CPU per request")
    for protocol in BODIES:
        for model, what in (("single", "one at a time"), ("bursts", "ten at a time")):
            cpu, done, chunks = measure(pid, port, model, max(1, requests // 20), connections, protocol, stream=True)
            print(
                f"{protocol:12}{over} chunks {what:14} {cpu / chunks * 1e6:6.1f} µs CPU per chunk"
                f"  ({chunks // done} chunks a stream)"
            )


def measure(
    pid: int, port: int, model: str, requests: int, connections: int, protocol: str, *, stream: bool
) -> tuple[float, int, int]:
    """CPU seconds of the server for `requests` requests, the number of requests, and the number of chunks."""
    before = cpu_seconds(pid)
    chunks = asyncio.run(drive(port, model, requests, connections, protocol, stream=stream))
    return cpu_seconds(pid) - before, requests, chunks


def _openai(model: str, stream: bool) -> tuple[str, str]:
    flag = "true" if stream else "false"
    message = '[{"role":"user","content":"What is the capital of France?"}]'
    return "/v1/chat/completions", f'{{"model":"{model}","messages":{message},"stream":{flag}}}'


def _triton(model: str, stream: bool) -> tuple[str, str]:
    call = "generate_stream" if stream else "generate"
    return f"/v2/models/{model}/{call}", '{"text_input":"What?","parameters":{"max_tokens":2000}}'


def _databricks(model: str, stream: bool) -> tuple[str, str]:
    _, body = _openai(model, stream)
    return f"/serving-endpoints/{model}/invocations", body


def _anthropic(model: str, stream: bool) -> tuple[str, str]:
    _, body = _openai(model, stream)
    return "/v1/messages", f'{body[:-1]},"max_tokens":2000}}'


def _tgi(model: str, stream: bool) -> tuple[str, str]:
    call = "generate_stream" if stream else "generate"
    return f"/{model}/{call}", '{"inputs":"What?","parameters":{"max_new_tokens":2000}}'


BODIES = {"openai": _openai, "databricks": _databricks, "anthropic": _anthropic, "tgi": _tgi, "triton": _triton}


async def drive(
    port: int, model: str, requests: int, connections: int, protocol: str = "openai", *, stream: bool
) -> int:
    """Send `requests` requests over `connections` connections; returns the number of events read."""
    request = written(model, protocol, stream=stream)
    shares = [requests // connections + (index < requests % connections) for index in range(connections)]
    return sum(await asyncio.gather(*(_client(port, request, share) for share in shares)))


async def steady(port: int, model: str, requests: int, connections: int) -> float:
    """Whole answers per second over warm connections: each has had an answer before the measurement."""
    request = written(model, "openai", stream=False)
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    await asyncio.gather(*(_ask(*one, request, 1) for one in opened))
    began = time.perf_counter()
    await asyncio.gather(*(_ask(*one, request, requests // connections) for one in opened))
    rate = requests // connections * connections / (time.perf_counter() - began)
    for _, writer in opened:
        writer.close()
    return rate


def written(model: str, protocol: str, *, stream: bool) -> bytes:
    """The bytes of a request."""
    path, body = BODIES[protocol](model, stream)
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


async def _client(port: int, request: bytes, count: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    events = await _ask(reader, writer, request, count)
    writer.close()
    return events


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, count: int) -> int:
    events = 0
    for _ in range(count):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        if b"content-length" in head:
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        else:
            events += await _chunks(reader)
    return events


async def _chunks(reader: asyncio.StreamReader) -> int:
    events = 0
    while size := int(await reader.readline(), 16):
        events += (await reader.readexactly(size + 2)).count(b"data: ")
    await reader.readline()
    return events


@contextmanager
def server(text: str = CONFIG, log_file: Path | None = None) -> Iterator[tuple[int, int]]:
    """Run the real server with a configuration; yields its process id and port. Its log is in `log_file`."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "gateway.toml")
        config.write_text(text)
        with (log_file or Path(folder, "log")).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)],
                stdout=log,
                stderr=log,
                # Not from the working directory where PYTHONPATH names an installation (`make bench-peers`).
                env=os.environ | {"BENCH_KEY": KEY, "PYTHONSAFEPATH": "1"},
            )
        try:
            _wait(port)
            yield process.pid, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def free_port() -> int:
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready"):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError("the server did not get ready")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants.

    By the clock of each process (clock_getcpuclockid(3)), which counts nanoseconds: the ticks of `/proc` are 10 ms, a
    tenth of what 2,000 requests take.
    """
    return sum(time.clock_gettime(~process << 3 | _CPUCLOCK_SCHED) for process in [pid, *descendants(pid)])


def descendants(pid: int) -> list[int]:
    """The ids of a process's children, their children, and so on."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


if __name__ == "__main__":
    main()
