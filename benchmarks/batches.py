"""Whether each line of a batch is answered exactly once while the gateway is killed, and what clients notice.

    python -m benchmarks.batches [--lines 10000] [--kills 2] [--pairs 10] [--seconds 3]

First the whole gateway, supervisor and workers, is killed in the middle of a batch and started again. Then clients ask
as fast as they can, with a batch beside them and without one in turns: a slowdown is the median of the ratios of two
neighbours. Neighbours of the same kind show the machine's noise. On a machine with other work, the CPU time that the
gateway takes for each of their requests says more than their times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.gateway import cpu_seconds, descendants, free_port

CONFIG = """
[server]
workers = {workers}
[batches]
folder = "{folder}/batches"
[usage]
database = "{folder}/usage.sqlite3"
[backends.s]
kind = "scripted"
[endpoints.echo]
served_entities = [{{ name = "echo", backend = "s", model = "echo" }}]
"""
_CHAT = "/v1/chat/completions"
_CLIENTS = 4
_SETTLED = 1.5
"""Seconds between a change and what is measured."""


class Gateway:
    """A gateway that can be killed and started again in its folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        (folder / "gateway.toml").write_text(CONFIG.format(folder=folder, workers=workers))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; return once it can answer."""
        self.port = free_port()
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(self.port)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(self._folder / "gateway.toml")], stdout=log, stderr=log
            )
        for _ in range(1200):
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready"):
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the gateway did not get ready")

    def kill(self) -> None:
        """Kill all of its processes at once."""
        assert self._process is not None
        for pid in [self._process.pid, *descendants(self._process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that its processes have taken."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """End it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class Outcome(NamedTuple):
    """What became of a batch whose gateway was killed.

    Attributes:
        lines: in the files of results.
        missing, twice: names that no result has, or more than one.
        wrong: results that are not the answer to their line.
        records: of requests in the usage database; those beyond `lines` were asked again after a kill.
        seconds: until the batch had ended.
    """

    lines: int
    missing: int
    twice: int
    wrong: int
    records: int
    seconds: float


def _input(lines: int) -> bytes:
    def line(number: int) -> str:
        body = {"model": "echo", "messages": [{"role": "user", "content": f"I am line {number}"}]}
        return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": _CHAT, "body": body})

    return "\n".join(map(line, range(lines))).encode()


def _create(client: httpx.Client, lines: int) -> str:
    file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", _input(lines))}).json()
    asked = {"input_file_id": file["id"], "endpoint": _CHAT, "completion_window": "24h"}
    return str(client.post("/v1/batches", json=asked).json()["id"])


def killed(lines: int, kills: int, workers: int = 2) -> Outcome:
    """Run a batch, kill the gateway in the middle of it, and read the results."""
    with tempfile.TemporaryDirectory() as name:
        gateway = Gateway(Path(name), workers)
        gateway.start()
        began = time.monotonic()
        with httpx.Client(base_url=gateway.url, timeout=60) as client:
            id = _create(client, lines)
        left = [lines * (number + 1) // (kills + 1) for number in range(kills)]
        while True:
            batch = _described(gateway, id)
            if left and batch["request_counts"]["completed"] >= left[0]:
                left.pop(0)
                gateway.kill()
                print(f"  killed at {batch['request_counts']['completed']} lines", flush=True)
                gateway.start()
            if batch["status"] == "completed":
                break
            time.sleep(0.02)
        seconds = time.monotonic() - began
        assert not left, "the batch ended before the gateway was killed"
        with urllib.request.urlopen(f"{gateway.url}/v1/files/{batch['output_file_id']}/content") as answer:
            results = [json.loads(line) for line in answer]
        gateway.stop()
        return _judged(results, lines, _records(Path(name)), seconds)


def _judged(results: list[dict[str, Any]], lines: int, records: int, seconds: float) -> Outcome:
    names = [result["custom_id"] for result in results]
    wrong = sum(
        result["response"]["body"]["choices"][0]["message"]["content"]
        != f"I am line {result['custom_id'].removeprefix('line-')}"
        for result in results
    )
    missing = len({f"line-{number}" for number in range(lines)} - set(names))
    return Outcome(len(results), missing, len(names) - len(set(names)), wrong, records, seconds)


def _records(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "usage.sqlite3")) as database:
        return int(database.execute("SELECT count(*) FROM usage_record WHERE route = 'chat'").fetchone()[0])


def _described(gateway: Gateway, id: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.url}/v1/batches/{id}") as answer:
        described: dict[str, Any] = json.load(answer)
    return described


class Phase(NamedTuple):
    """What clients saw: requests a second, the seconds of half and of 99 % of the requests at most.

    `cpu`: seconds of the gateway for each of their requests.
    """

    rate: float
    median: float
    tail: float
    cpu: float


async def beside(lines: int, pairs: int, seconds: float) -> tuple[list[tuple[Phase, Phase]], float]:
    """Clients without a batch and with one, in turns; and how many lines a second were answered beside them."""
    found: list[tuple[Phase, Phase]] = []
    answered = 0
    with tempfile.TemporaryDirectory() as name:
        gateway = Gateway(Path(name), 1)
        gateway.start()
        asked: list[tuple[float, float]] = []
        clients = [asyncio.create_task(_ask(gateway.url, asked)) for _ in range(_CLIENTS)]
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
            form = {"purpose": "batch"}
            file = (await client.post("/v1/files", data=form, files={"file": ("in.jsonl", _input(lines))})).json()
            for number in range(pairs):
                phases: dict[bool, Phase] = {}
                for with_batch in (number % 2 == 0, number % 2 == 1):  # neither is always the first
                    batch = await _begun(client, file["id"]) if with_batch else ""
                    before = await _completed(client, batch)
                    phases[with_batch] = await _measured(gateway, asked, seconds)
                    answered += await _completed(client, batch) - before
                    if with_batch:
                        await client.post(f"/v1/batches/{batch}/cancel")
                        await _until(client, batch, "cancelled")
                found.append((phases[False], phases[True]))
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        gateway.stop()
    return found, answered / (pairs * seconds)


async def _ask(url: str, asked: list[tuple[float, float]]) -> None:
    """Ask without a pause; note when each request ended, and how long it took."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "one two three four five six seven eight"}]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            began = time.perf_counter()
            (await client.post(_CHAT, json=body)).raise_for_status()
            asked.append((time.perf_counter(), time.perf_counter() - began))


async def _measured(gateway: Gateway, asked: list[tuple[float, float]], seconds: float) -> Phase:
    await asyncio.sleep(_SETTLED)
    began, spent = time.perf_counter(), gateway.cpu_seconds
    await asyncio.sleep(seconds)
    ended, spent = time.perf_counter(), gateway.cpu_seconds - spent
    times = sorted(took for at, took in asked if began <= at < ended)
    return Phase(len(times) / (ended - began), median(times), times[len(times) * 99 // 100], spent / len(times))


async def _begun(client: httpx.AsyncClient, file: str) -> str:
    """A batch whose lines are being answered."""
    asked = {"input_file_id": file, "endpoint": _CHAT, "completion_window": "24h"}
    id = str((await client.post("/v1/batches", json=asked)).json()["id"])
    await _until(client, id, "in_progress")
    return id


async def _until(client: httpx.AsyncClient, id: str, state: str) -> None:
    while (await client.get(f"/v1/batches/{id}")).json()["status"] != state:  # noqa: ASYNC110 - as clients do
        await asyncio.sleep(0.05)


async def _completed(client: httpx.AsyncClient, id: str) -> int:
    return int((await client.get(f"/v1/batches/{id}")).json()["request_counts"]["completed"]) if id else 0


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    if options.kills:
        outcome = killed(options.lines, options.kills)
        print(f"{options.lines} lines, {options.kills} kills of the whole gateway: {outcome.seconds:.0f} s")
        print(f"  results {outcome.lines}, missing {outcome.missing}, twice {outcome.twice}, wrong {outcome.wrong}")
        print(f"  records {outcome.records}: {outcome.records - options.lines} lines were asked again after a kill")
    before = os.getloadavg()[0]
    pairs, rate = asyncio.run(beside(options.lines, options.pairs, options.seconds))
    for name, better in (("rate", -1), ("median", 1), ("tail", 1), ("cpu", 1)):
        ratios = [(getattr(with_batch, name) / getattr(without, name)) ** better for without, with_batch in pairs]
        alone = median(getattr(without, name) for without, _ in pairs)
        print(
            f"{name:7} alone {alone:.6g}; slower beside a batch by {median(ratios) - 1:+.1%} (median of {len(pairs)});"
            f" noise {_noise(pairs, name):.1%}"
        )
    print(f"lines answered beside clients: {rate:.1f} a second; load {before:.1f} to {os.getloadavg()[0]:.1f}")


def _noise(pairs: list[tuple[Phase, Phase]], name: str) -> float:
    """The standard error of a median of so many ratios where nothing differs.

    The last phase of each pair and the first of the next one are of the same kind, since the order turns round.
    """
    differences = [
        abs(getattr(after[kind], name) / getattr(before[kind], name) - 1)
        for number, (before, after) in enumerate(pairwise(pairs))
        for kind in [number % 2]  # the first pair has the batch first: it ends without one
    ]
    # The median of absolute differences is 0.674 standard deviations; a median's error is 1.25 times a mean's.
    return 1.25 * median(differences) / 0.674 / len(pairs) ** 0.5 if differences else float("nan")


if __name__ == "__main__":
    main()
