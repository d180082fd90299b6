"""The server under mixed traffic and faults for a long time: is every request accounted for, and does nothing grow?

    python -m benchmarks.soak [--minutes 60] [--clients 12] [--every 10]

`make soak`. Starts the real server with two workers, the bundled model and a scripted backend, and drives it over all
protocols: whole answers and streams, images, grammars, cancels, malformed bodies, clients that write or read slowly.
Every `--every` seconds there is a fault: a worker or the engine is killed or stopped, or the configuration is read
again. At the end it prints how the requests ended, what the log and the metrics say of them, and the growth of each
kind of process. The exit code is 1 if a request hung or is not accounted for, if a stream had a clean end without a
last event, or if anything is left of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gateway import descendants, free_port

CONFIG = """
[server]
workers = 2
hung_after = 5.0
[server.limits]
write_stall = 5.0
body_idle = 3.0
[backends.local]
kind = "native"
heartbeat = 0.5
hung_after = 5.0
[backends.s]
kind = "scripted"
[endpoints.demo]
served_entities = [{ name = "demo", backend = "local" }]
[endpoints.echo]
served_entities = [{ name = "echo", backend = "s", model = "echo" }]
"""
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
TIMEOUT = 120.0
"""Seconds after which a request hangs."""
SAMPLE = 5.0
PAUSE = 0.05
ENDS = (
    b"data: [DONE]",
    b'"type":"message_stop"',
    b'"generated_text":"',
    b'"type":"response.completed"',
    b'"finish_reason"',
)
ERRORS = (b'"error"', b'"type":"response.failed"')


@dataclass
class Call:
    """One request: its path, body, and what the client does with it."""

    name: str
    path: str
    body: bytes
    behaviour: str = "reads"


@dataclass
class Seen:
    """What the clients saw."""

    ended: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ids: set[str] = field(default_factory=set)
    sent: int = 0
    unnamed: int = 0
    """Requests whose connection ended before an id was read: the log may have a line for each."""

    def add(self, call: Call, how: str, id: str | None) -> None:
        self.ended[call.name][how] += 1
        self.sent += 1
        if id is None:
            self.unnamed += 1
        else:
            self.ids.add(id)


def calls(chance: random.Random) -> Call:
    """A random request."""
    model = chance.choice(("demo", "demo", "echo"))
    text = chance.choice(("Tell me a story.", "Count to ten.", f"What is {chance.randrange(99)} plus one?"))
    messages = [{"role": "user", "content": text}]
    stream, few = chance.random() < 0.5, chance.randrange(4, 24)
    chat = {"model": model, "messages": messages, "max_tokens": few, "stream": stream}
    image = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]
    seen = {"model": "demo", "messages": [{"role": "user", "content": [*image, {"type": "text", "text": "What?"}]}]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    strict = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    choices: list[Callable[[], Call]] = [
        lambda: _call("openai", "/v1/chat/completions", chat),
        lambda: _call("databricks", f"/serving-endpoints/{model}/invocations", chat),
        lambda: _call("anthropic", "/v1/messages", chat),
        lambda: _call("responses", "/v1/responses", {"model": model, "input": text, "max_output_tokens": 16}),
        lambda: _call(
            "triton", f"/v2/models/{model}/generate", {"text_input": text, "parameters": {"max_tokens": few}}
        ),
        lambda: _call("tgi", "/generate", {"inputs": text, "parameters": {"max_new_tokens": few}}),
        lambda: _call("tgi stream", "/generate_stream", {"inputs": text, "parameters": {"max_new_tokens": few}}),
        lambda: _call("image", "/v1/chat/completions", seen | {"max_tokens": few}),
        lambda: _call("grammar", "/v1/chat/completions", chat | {"model": "demo", "response_format": strict}),
        lambda: _call("cancelled", "/v1/chat/completions", chat | {"stream": True, "max_tokens": 200}, "cancels"),
        lambda: Call("malformed", "/v1/chat/completions", b'{"model": "demo", "messages": [' + b"[" * 99),
        lambda: _call("slow writer", "/v1/chat/completions", chat, "drips"),
        lambda: _call("silent writer", "/v1/chat/completions", chat, "stops writing"),
        lambda: _call("slow reader", "/v1/chat/completions", chat | {"stream": True}, "dawdles"),
    ]
    return chance.choices(choices, (4, 2, 3, 2, 2, 2, 2, 1, 2, 3, 1, 0.3, 0.1, 0.5))[0]()


def _call(name: str, path: str, body: dict[str, Any], behaviour: str = "reads") -> Call:
    return Call(name, path, json.dumps(body).encode(), behaviour)


async def client(port: int, seed: int, seen_requests: Seen, stop: asyncio.Event) -> None:
    """Send requests until stopped."""
    chance = random.Random(seed)
    while not stop.is_set():
        call = calls(chance)
        id: list[str] = []
        try:
            async with asyncio.timeout(TIMEOUT):
                how = await _exchange(port, call, chance, id)
        except TimeoutError:
            how = "HUNG"
        except (OSError, asyncio.IncompleteReadError):
            how = "connection ended"
        seen_requests.add(call, how, id[0] if id else None)
        if how in ("connection ended", "503"):
            await asyncio.sleep(PAUSE)


async def _exchange(port: int, call: Call, chance: random.Random, id: list[str]) -> str:
    """Send a request and read its answer; how it ended. The request's id is appended to `id` once it is known."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        length = len(call.body)
        writer.write(f"POST {call.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n".encode())
        writer.write(f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode())
        await _send_body(writer, call)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        id += [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("x-request-id: ")][:1]
        if (status := head.split()[1]) != "200":
            return status
        if call.behaviour == "cancels":
            await reader.read(chance.randrange(1, 2000))
            return "left"
        body = await _read(reader, slowly=call.behaviour == "dawdles")
        if b"text/event-stream" not in head.encode():
            return "whole"
        if not body.endswith(b"0\r\n\r\n"):  # the last chunk: without it every client knows that bytes are missing
            return "connection ended"
        if any(error in body for error in ERRORS):
            return "error event"
        return "whole" if any(end in body for end in ENDS) else "FALSE END"
    finally:
        writer.close()


async def _send_body(writer: asyncio.StreamWriter, call: Call) -> None:
    if call.behaviour == "stops writing":
        writer.write(call.body[:5])
        await writer.drain()
        return
    if call.behaviour == "drips":
        for at in range(10):
            writer.write(call.body[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(call.body[10:])
    else:
        writer.write(call.body)
    await writer.drain()


async def _read(reader: asyncio.StreamReader, *, slowly: bool) -> bytes:
    parts = []
    while part := await reader.read(200 if slowly else 1 << 16):
        parts.append(part)
        if slowly:
            await asyncio.sleep(0.02)
    return b"".join(parts)


class Processes:
    """The server's processes, by kind, and what they take."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.samples: dict[str, list[tuple[float, int, int]]] = defaultdict(list)

    def of(self, kind: str) -> list[int]:
        """Workers or engines that run now."""
        word = {"worker": "gateway.process.worker", "engine": "native.engine"}[kind]
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(child) for child in children if word in _read_text(f"/proc/{child}/cmdline")]

    def sample(self) -> None:
        """Note memory (MB), descriptors and threads of each process; the most of each kind."""
        for kind, pids in {"supervisor": [self.pid], "worker": self.of("worker"), "engine": self.of("engine")}.items():
            found = [_usage(pid) for pid in pids]
            if found:
                self.samples[kind].append(tuple(map(max, zip(*found, strict=True))))  # type: ignore[arg-type]

    def report(self) -> None:
        """Print each kind's use in the second and in the last tenth of the time: the first is the start."""
        for kind, samples in self.samples.items():
            tenth = max(1, len(samples) // 10)
            early, late = samples[tenth : 2 * tenth] or samples, samples[-tenth:]
            for place, what in enumerate(("MB resident", "descriptors", "threads")):
                first, last = (max(sample[place] for sample in part) for part in (early, late))
                print(f"  {kind:10} {what:12} {first:8.0f} -> {last:8.0f}")


def _usage(pid: int) -> tuple[float, int, int]:
    status = dict(line.split(":", 1) for line in _read_text(f"/proc/{pid}/status").splitlines() if ":" in line)
    with suppress(OSError):
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return int(status.get("VmRSS", "0 kB").split()[0]) / 1024, descriptors, int(status.get("Threads", 0))
    return 0.0, 0, 0


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def disturb(processes: Processes, every: float, stop: asyncio.Event, faults: Counter[str]) -> None:
    """Do one fault after the other until stopped."""
    chance = random.Random(1)
    kinds = [(kind, number) for kind in ("worker", "engine") for number in (signal.SIGKILL, signal.SIGSTOP)]
    while not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), every)
            return
        kind, number = chance.choice([*kinds, ("reload", signal.SIGHUP)])
        pids = [processes.pid] if kind == "reload" else processes.of(kind)
        if pids:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(pids), number)
                faults[f"{number.name} {kind}"] += 1


async def soak(port: int, processes: Processes, given: argparse.Namespace) -> tuple[Seen, Counter[str]]:
    """Run clients and faults for the time that was asked for; then wait until the last request has ended."""
    seen_requests, faults, stop, calm = Seen(), Counter[str](), asyncio.Event(), asyncio.Event()
    clients = [asyncio.create_task(client(port, seed, seen_requests, stop)) for seed in range(given.clients)]
    trouble = asyncio.create_task(disturb(processes, given.every, calm, faults))
    ends = time.monotonic() + 60 * given.minutes
    while (left := ends - time.monotonic()) > 0:
        await asyncio.sleep(min(SAMPLE, left))
        processes.sample()
        # The last tenth is calm: what is stopped is replaced, and what runs is measured at rest.
        if left < 6 * given.minutes:
            calm.set()
    stop.set()
    await asyncio.gather(*clients, trouble)
    return seen_requests, faults


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT) as answer:
        return str(answer.read().decode())


def _await_ready(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError):
            _get(port, "/health/ready")
            return
        time.sleep(PAUSE)
    raise RuntimeError("the server did not get ready")


def _total(metrics: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(f"{name}{{"))


def judge(seen_requests: Seen, log: Path, metrics: str) -> list[str]:
    """Compare what clients, log and metrics say; what is wrong."""
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines() if line.startswith(b"{")]
    finished = [line["request_id"] for line in lines if line.get("event") == "request.finished"]
    refused, counted = _total(metrics, "gw_refused_total"), _total(metrics, "gw_requests_total")
    lost = len(seen_requests.ids - set(finished))
    print(f"requests: {seen_requests.sent} sent, {len(seen_requests.ids)} with an id, {seen_requests.unnamed} without")
    print(f"log: {len(finished)} lines; metrics: {counted:.0f} counted, {refused:.0f} refused before")
    wrong = (
        [f"{len(finished) - len(set(finished))} ids are logged twice"] if len(finished) != len(set(finished)) else []
    )
    if abs(counted - len(finished)) > 0:
        wrong.append(f"{counted:.0f} requests are counted, {len(finished)} are logged")
    broken = sum(count["connection ended"] for count in seen_requests.ended.values())
    # A worker that is killed cannot log the requests that it was answering: their clients saw the connection end, or
    # had left before. Whatever else has an id has a line, but for what was refused before a handler saw it.
    left = sum(count["left"] for count in seen_requests.ended.values())
    if lost > broken + left + refused:
        wrong.append(f"{lost} requests with an id have no line")
    if len(set(finished) - seen_requests.ids) > seen_requests.unnamed:
        wrong.append(f"{len(set(finished) - seen_requests.ids)} lines are of requests that nobody sent")
    bad = {how: sum(count[how] for count in seen_requests.ended.values()) for how in ("HUNG", "FALSE END")}
    return wrong + [f"{found} requests: {how}" for how, found in bad.items() if found]


def main() -> int:
    """Run and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--every", type=float, default=10.0)
    given = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name, "tmp")).mkdir()
        (config := Path(name, "gateway.toml")).write_text(CONFIG)
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)]
        with Path(name, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"TMPDIR": str(folder)})
        try:
            _await_ready(port)
            processes = Processes(process.pid)
            seen_requests, faults = asyncio.run(soak(port, processes, given))
            _await_ready(port)
            time.sleep(1.0)  # the last lines are written
            metrics = _get(port, "/metrics")
            everyone = [process.pid, *descendants(process.pid)]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT)
        print("faults:", dict(faults))
        for call, how in sorted(seen_requests.ended.items()):
            print(f"  {call:14}", dict(how))
        processes.report()
        wrong = judge(seen_requests, Path(name, "log"), metrics)
        if running := _total(metrics, "gw_requests_running"):
            wrong.append(f"{running:.0f} requests run at the end")
        wrong += [f"process {pid} is left" for pid in everyone if _read_text(f"/proc/{pid}/cmdline")]
        wrong += [f"{path.name} is left" for pattern in ("interlingua-*", "engine-*") for path in folder.glob(pattern)]
    print("\n".join(wrong) or "everything is accounted for, and nothing is left")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
