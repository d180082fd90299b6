"""llama.cpp's server over a GGUF file, driven by HTTP with one connection for each request, all at once.

Its settings are those of the other engines: keys and values in bfloat16, no prompt cache, equal tokens per step.
Requests reach it one after the other, so that a batch forms over its first steps.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.gateway import free_port
from benchmarks.lines import Job, System

SLOTS = 32


@contextmanager
def llama_server(
    binary: Path, model: Path, *, log: Path, threads: int, tokens: int, step_tokens: int, more: Sequence[str] = ()
) -> Iterator[System]:
    """Start the server with a KV cache of `tokens` tokens, and `more` options; yields what runs jobs in it."""
    port = free_port()
    command = [binary, "--model", model, "--host", "127.0.0.1", "--port", port, "--threads", threads]
    command += ["--threads-batch", threads, "--parallel", SLOTS, "--kv-unified", "--ctx-size", tokens]
    command += ["--batch-size", step_tokens, "--ubatch-size", step_tokens, "--cache-ram", 0, "--no-webui"]
    command += ["--cache-type-k", "bf16", "--cache-type-v", "bf16", "--slot-prompt-similarity", 0, *more]
    with log.open("wb") as written:
        process = subprocess.Popen([str(word) for word in command], stdout=written, stderr=written)
    limits = httpx.Limits(max_connections=SLOTS, max_keepalive_connections=SLOTS)
    try:
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits, trust_env=False) as client,
            ThreadPoolExecutor(SLOTS) as pool,
        ):
            _wait(client, process, log)
            yield lambda jobs: _run(client, pool, jobs)
    finally:
        process.kill()
        process.wait()


def _run(client: httpx.Client, pool: ThreadPoolExecutor, jobs: Sequence[Job]) -> list[list[int]]:
    return list(pool.map(lambda job: _complete(client, *job), jobs))


def _complete(client: httpx.Client, prompt: list[int], new: int) -> list[int]:
    greedy = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
    response = client.post("/completion", json={"prompt": prompt, "n_predict": new} | greedy)
    tokens: list[int] = response.raise_for_status().json()["tokens"]
    return tokens


def _wait(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended:\n{log.read_text()[-2000:]}")
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("llama-server did not get ready")
