"""CPU cost of other gateways, measured like ours (`benchmarks.remote`) in front of the same upstream.

    make bench-peers
    python -m benchmarks.peers --bin path/to/venv/bin [--requests 2000] [--rounds 5] [--connections 32] [--streams 256]

`litellm[proxy]`, `vllm-router` and `sglang-router` are looked up in these folders, `nginx` among the system's commands;
missing ones are skipped. All run at the same time and are measured in turn in each round; medians are printed: a whole
answer, a chunk of ten in one read, a chunk that comes alone, and one of many streams that have a chunk every 10 ms.
Ours decodes answers, checks keys, writes a log line and counts; the Rust routers and nginx forward bytes.
"""

from __future__ import annotations

import argparse
import asyncio
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
from statistics import median

from benchmarks.gateway import drive, free_port, measure, server
from benchmarks.remote import CONFIG, upstream

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
MODELS = ("whole", "bursts", "single", "paced")
OURS = "interlingua"
Costs = dict[str, list[float]]
"""By gateway: CPU microseconds of a whole answer, and of a chunk of each kind of stream, as in `MODELS`."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True, nargs="+")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--streams", type=int, default=256, help="that have a chunk every 10 ms")
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    with ExitStack() as stack:
        far = stack.enter_context(upstream())
        running = {OURS: stack.enter_context(server(CONFIG.format(port=far)))}
        for name in given.only or ("nginx", "vllm-router", "sglang-router", "litellm"):
            command = _command(name, given.bin)
            if command is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                running[name] = stack.enter_context(peer(command, far, folder))
        rounds = [measure_round(running, given.requests, given.connections, given.streams) for _ in range(given.rounds)]
    report(rounds)


def measure_round(running: dict[str, tuple[int, int]], requests: int, connections: int, streams: int) -> Costs:
    """Measure each gateway once."""
    costs: Costs = {}
    for name, (pid, port) in running.items():
        asyncio.run(drive(port, "whole", 200, connections, stream=False))  # warm up
        cpu, done, _ = measure(pid, port, "whole", requests, connections, "openai", stream=False)
        costs[name] = [cpu / done * 1e6]
        for model in MODELS[1:]:
            at_once, asked = (streams, streams) if model == "paced" else (connections, max(connections, requests // 20))
            cpu, _, chunks = measure(pid, port, model, asked, at_once, "openai", stream=True)
            costs[name].append(cpu / chunks * 1e6)
    return costs


def report(rounds: list[Costs]) -> None:
    """Print medians, and how many times as much ours takes."""
    medians = {name: [median(costs[name][of] for costs in rounds) for of in range(len(MODELS))] for name in rounds[0]}
    print(f"{'CPU µs':14}" + "".join(f"{model:>10}   ours" for model in MODELS))
    for name, costs in medians.items():
        print(
            f"{name:14}"
            + "".join(f"{cost:10.1f} x{own / cost:5.2f}" for cost, own in zip(costs, medians[OURS], strict=True))
        )


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
        "vllm-router": router,
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
