"""CPU cost and delays of other gateways, measured like ours (`benchmarks.remote`) in front of the same upstream.

    make bench-peers
    python -m benchmarks.peers --bin path/to/venv/bin [--requests 2000] [--rounds 5] [--connections 32] [--streams 256]

`litellm[proxy]`, `vllm-router` and `sglang-router` are looked up in these folders, `nginx` among the system's
commands; missing ones are skipped. All run at the same time, on one core that client and upstream do not use, and are
measured in turn in each round; medians are printed: a whole answer, a chunk of ten in one read, a chunk that comes
alone, and one of many streams that have a chunk every 10 ms. Delays are the kernel's (`benchmarks.streams`): the first
event of an answer when all streams begin at once and when they begin one after another while the others run, and each
later chunk's. Ours decodes answers, checks keys and limits, assigns arms, writes a log line and counts;
the others forward bytes, but for litellm, which gets a tenth of the requests, and 16 streams: it has no time for more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.gateway import cpu_seconds, drive, free_port, measure, server
from benchmarks.remote import MODELS, configured, upstream
from benchmarks.streams import Streams

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid;
events {{ worker_connections 2048; }}
http {{
  access_log {folder}/access;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream far {{ server 127.0.0.1:{far}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000;
    location / {{ proxy_pass http://far; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""
OURS, ROUTER, PYTHON = "interlingua", "vllm-router", "litellm"
STREAM_SECONDS = 2.0
"""What a paced stream takes."""
Figures = dict[str, float]
"""What was measured of one gateway, by the names of `COLUMNS`."""
COLUMNS = {
    "whole": "CPU µs, whole answer",
    "bursts": "CPU µs, chunk, ten in one read",
    "single": "CPU µs, chunk, alone",
    "paced": "CPU µs, chunk, paced streams",
    "one": "first event, one connection, ms",
    "at_once": "first event, all streams at once, ms",
    "in_turn": "first event, others running, ms",
    "chunk": "delay of a chunk, median, ms",
    "chunk_p99": "delay of a chunk, p99, ms",
}


class Goal(NamedTuple):
    """What is to hold: `ours` is at most `most` times `other`'s, or at least `least` times less."""

    figure: str
    other: str
    most: float = 0.0
    least: float = 0.0


GOALS = (
    Goal("whole", ROUTER, most=2.0),
    Goal("bursts", ROUTER, most=0.9),
    Goal("paced", ROUTER, most=1.2),
    Goal("whole", PYTHON, least=60.0),
    Goal("in_turn", ROUTER, most=1.3),
    Goal("at_once", ROUTER, most=1.3),
    Goal("chunk_p99", ROUTER, most=2.0),
)
ADDED_MS = 0.5
"""The most that ours may add to the first event at one connection."""


class Load(NamedTuple):
    """How much a gateway is asked: whole answers, connections for them, streams at once."""

    requests: int
    connections: int
    streams: int


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, nargs="+")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--streams", type=int, default=256, help="that have a chunk every 10 ms")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--plain", action="store_true", help="without an experiment and limits")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        os.sched_setaffinity(0, set(cores[:-1] or cores))
        far = stack.enter_context(upstream())
        os.sched_setaffinity(0, {cores[-1]})  # what is started now, is there
        running = {OURS: stack.enter_context(server(configured(far, everything=not given.plain)))}
        for name in given.only or ("nginx", ROUTER, "sglang-router", PYTHON):
            command = _command(name, given.bin)
            if command is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                running[name] = stack.enter_context(peer(command, far, folder))
        os.sched_setaffinity(0, set(cores[:-1] or cores))
        full = Load(given.requests, given.connections, given.streams)
        less = Load(given.requests // 10, 16, min(given.streams, 16))
        rounds = []
        for number in range(given.rounds):
            direct = {"one": _one_connection(far)} | _delays(far, given.streams)[0]
            found = {name: measure_peer(*at, less if name == PYTHON else full) for name, at in running.items()}
            rounds.append(found | {"none": direct})
            print(f"round {number + 1}: {_ratios(rounds[-1:])}", flush=True)
    report(rounds)


def measure_peer(pid: int, port: int, load: Load) -> Figures:
    """Measure a gateway once."""
    asyncio.run(drive(port, "whole", min(200, load.requests), load.connections, stream=False))  # warm up
    cpu, done, _ = measure(pid, port, "whole", load.requests, load.connections, "openai", stream=False)
    found = {"whole": cpu / done * 1e6}
    for model in ("bursts", "single"):
        asked = max(load.connections, load.requests // 20)
        cpu, _, chunks = measure(pid, port, model, asked, load.connections, "openai", stream=True)
        found[model] = cpu / chunks * 1e6
    before = cpu_seconds(pid)
    delays, events = _delays(port, load.streams)
    return found | delays | {"paced": (cpu_seconds(pid) - before) / events * 1e6, "one": _one_connection(port)}


def _delays(port: int, count: int) -> tuple[Figures, int]:
    """The delays of many streams, and how many events they had."""
    streams = Streams(port, "paced", count)
    gc.collect()
    gc.disable()
    try:
        warm = streams.run()  # opens the gateway's connections to the upstream
        at_once, in_turn = streams.run(), streams.run(times=2, spread=STREAM_SECONDS)
    finally:
        gc.enable()
        streams.close()
    figures = {
        "at_once": median(at_once.first) * 1e3,
        "in_turn": median(in_turn.first) * 1e3,
        "chunk": median(in_turn.chunks) * 1e3,
        "chunk_p99": quantiles(in_turn.chunks, n=100)[-1] * 1e3,
    }
    return figures, warm.events + at_once.events + in_turn.events


def _one_connection(port: int) -> float:
    """Milliseconds to the first event at one connection."""
    streams = Streams(port, "bursts", 1)
    first = median(streams.run(times=15).first) * 1e3
    streams.close()
    return first


def _median(rounds: list[dict[str, Figures]], name: str, figure: str) -> float:
    return median(found[name][figure] for found in rounds)


def _ratios(rounds: list[dict[str, Figures]]) -> str:
    """Each goal's ratio, where the other gateway is there."""
    parts = []
    for figure, other, most, _ in GOALS:
        if other in rounds[0]:
            ours, theirs = _median(rounds, OURS, figure), _median(rounds, other, figure)
            parts.append(f"{figure} {ours / theirs if most else theirs / ours:.2f}")
    return ", ".join(parts)


def report(rounds: list[dict[str, Figures]]) -> None:
    """Print medians, and what is to hold."""
    for figure, what in COLUMNS.items():
        print(f"{what:40}", end="")
        for name, found in rounds[0].items():
            if figure in found:
                print(f"  {name} {_median(rounds, name, figure):.{1 if 'CPU' in what else 2}f}", end="")
        print()
    for figure, other, most, least in GOALS:
        if other in rounds[0]:
            ours, theirs = _median(rounds, OURS, figure), _median(rounds, other, figure)
            ratio, goal = (ours / theirs, f"at most {most}") if most else (theirs / ours, f"at least {least}")
            met = ratio <= most if most else ratio >= least
            what = f"{COLUMNS[figure]}: {other}'s" if least else f"{COLUMNS[figure]}: times {other}'s"
            print(f"{what:62} {ratio:7.2f}, goal {goal}: {'met' if met else 'missed'}")
    added = _median(rounds, OURS, "one") - _median(rounds, "none", "one")
    print(f"{'ms added to the first event at one connection':62} {added:7.2f}, goal at most {ADDED_MS}:", end=" ")
    print("met" if added <= ADDED_MS else "missed")


def _command(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") if name == "nginx" else None
    return Path(found) if found is not None else None


@contextmanager
def peer(command: Path, far: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Run another gateway in front of the upstream on port `far`; yields its process id and port."""
    port, url = free_port(), f"http://127.0.0.1:{far}"
    router = ["--worker-urls", url, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    config = folder / "litellm.json"
    config.write_text(json.dumps(_litellm(url)))
    plain = folder / "nginx.conf"
    plain.write_text(NGINX.format(folder=folder, port=port, far=far))
    arguments = {
        "nginx": ["-c", str(plain), "-e", str(folder / "errors")],
        # Its default policy asks the server for a prompt's tokens before each request; for one server none is needed.
        "vllm-router": [*router, "--policy", "round_robin"],
        "sglang-router": ["launch", *router],
        "litellm": ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"],
    }[command.name]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | quiet
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([command, *arguments], stdout=log, stderr=log, env=environment)
    try:
        _wait(port)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(20)


def _litellm(url: str) -> dict[str, object]:
    there = {"api_base": f"{url}/v1", "api_key": "x"}
    models = [{"model_name": name, "litellm_params": there | {"model": f"openai/{name}"}} for name in MODELS]
    return {"model_list": models}


def _wait(port: int) -> None:
    body = b'{"model":"whole","messages":[{"role":"user","content":"x"}]}'
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    for _ in range(960):  # on a busy machine litellm takes minutes to import what it needs
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
        else:
            return
    raise RuntimeError("the gateway did not become ready in 240 s")


if __name__ == "__main__":
    main()
