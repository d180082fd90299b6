"""Compare the native engine with transformers' `generate` and `generate_batch`: same weights, threads and run.

    python -m benchmarks.engine [--dtypes float32 bfloat16] [--rounds 3] [--threads N] [--scale 4] [--only WORD ...]

Each system runs in a process of its own, as an engine does: OpenMP threads stop spinning between products once a
process has more of them than there are cores. Each builds the same random weights (the shape of Qwen2.5 0.5B on a CPU,
of Llama 8B on a CUDA device). Their answers must be equal; then they are measured in turns, and medians are printed
beside the limits of the machine in the same run. Nothing is downloaded. Times are wall-clock; with `--threads 1` they
are CPU times, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from backends.native.engine.devices import accelerator, default_device
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.machine import physical_cores
from benchmarks.gateway import cpu_seconds
from benchmarks.lines import line_system
from benchmarks.overhead import print_overhead
from benchmarks.shapes import build
from benchmarks.systems import System
from benchmarks.workloads import EIGHT, ONE, PREFILL, PREFIX, SCALE, Job, workloads

Clock = Callable[[], float]
OURS, STATIC, BATCH = "interlingua", "generate", "generate_batch"
BESIDE = {ONE: {"copying the weights": "copying"}, PREFIX: {OURS: "caching", BATCH: "sharing"}}
"""Further systems by workload, with their labels there."""
ROUNDED, SAMPLED = f"{ONE}, rounded weights", "decode, mixed sampling"


def main() -> None:
    """Run the benchmark and print its results."""
    device = default_device()
    on_cpu = device.type == "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"] if on_cpu else ["bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
    parser.add_argument(
        "--scale", type=int, default=SCALE if on_cpu else 1, help="divides the published mixed workload"
    )
    parser.add_argument("--only", nargs="*", default=[""], help="workloads whose names hold one of these words")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    processor = on_cpu and given.threads == 1
    clock = partial(cpu_seconds, os.getpid()) if processor else time.perf_counter
    of = "processor" if processor else "wall"
    print(f"torch {torch.__version__}, {device}, {given.threads} threads, medians of {given.rounds}, {of} time")
    print_overhead()
    with tempfile.TemporaryDirectory() as folder:
        for dtype in given.dtypes:
            measure(dtype, device, Table(given.rounds, given.only, clock), given.threads, given.scale, Path(folder))


class Table:
    """Measures workloads and prints a line for each."""

    def __init__(self, rounds: int, words: Sequence[str], clock: Clock) -> None:
        self._rounds = rounds
        self._words = words
        self.clock = clock

    def wants(self, workload: str) -> bool:
        """Whether the workload was selected on the command line."""
        return any(word in workload for word in self._words)

    def add(self, workload: str, jobs: Sequence[Job], systems: dict[str, System]) -> dict[str, float]:
        """Measure the systems in turns and print their tokens per second, relative to the first one.

        Returns:
            Median seconds by system; for decoding without the time to the first token.
        """
        if not self.wants(workload):
            return {}
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(self._rounds):
            for name, run in systems.items():
                times[name].append(_seconds(self.clock, run, jobs))
                if workload.startswith("decode"):
                    times[name][-1] -= _seconds(self.clock, run, [(prompt, 1) for prompt, _ in jobs])
        medians = {name: median(taken) for name, taken in times.items()}
        first = next(iter(medians.values()))
        tokens = sum(len(prompt) if new == 1 else new - workload.startswith("decode") for prompt, new in jobs)
        rates = "  ".join(f"{name} {tokens / taken:.1f} (x{taken / first:.2f})" for name, taken in medians.items())
        print(f"{workload:28} tokens/s: {rates}", flush=True)
        return medians


def measure(dtype: str, device: torch.device, table: Table, threads: int, scale: int, folder: Path) -> None:
    """Measure all workloads in one dtype."""
    shape = "qwen2.5-0.5b" if device.type == "cpu" else "llama-8b"
    model = build(shape, getattr(torch, dtype), torch.device("meta"))  # no weights, only sizes
    some = torch.empty(0, dtype=model.dtype, device=device)
    multiplied, copied = gemm_rate(some, table.clock), copy_rate(some, table.clock)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    print(f"\n{dtype}: weights {weights / 1e9:.2f} GB, copy {copied / 1e9:.1f} GB/s (read and", end=" ")
    print(f"written), product of 2048² matrices {multiplied / 1e9:.0f} GFLOP/s", flush=True)
    jobs = workloads(model.config.vocab_size, scale=scale)
    start = partial(in_process, shape=shape, dtype=dtype, threads=threads, folder=folder)
    with ExitStack() as stack:
        peers = {name: stack.enter_context(start(name)) for name in (OURS, STATIC, BATCH)}
        check(peers, model.config.vocab_size, exact=model.dtype == torch.float32)
        for workload in filter(table.wants, jobs):
            with ExitStack() as only_here:
                beside = {
                    label: only_here.enter_context(start(name)) for label, name in BESIDE.get(workload, {}).items()
                }
                if workload == PREFIX:
                    beside["without prefix cache"] = peers[OURS]
                times = table.add(workload, jobs[workload], peers | beside)
            if workload == PREFILL:
                operations = 2 * len(jobs[PREFILL][0][0]) * (model.num_parameters() - model.lm_head.weight.numel())
                print(f"{'':28} {operations / times[OURS] / multiplied:.0%} of the product's rate")
    own = {SAMPLED: (jobs[EIGHT], {"every row its own": "sampling", "all greedy": OURS})}
    if device.type == "cpu" and model.dtype == torch.bfloat16:
        own[ROUNDED] = (jobs[ONE], {name: name for name in (OURS, *BITS)})
    for workload in filter(table.wants, own):
        own_jobs, names = own[workload]
        with ExitStack() as stack:
            table.add(workload, own_jobs, {label: stack.enter_context(start(name)) for label, name in names.items()})


def in_process(name: str, *, shape: str, dtype: str, threads: int, folder: Path) -> AbstractContextManager[System]:
    """One of `systems.SYSTEMS` in a process of its own, with its log in `folder`."""
    log = folder / f"{name}.log"
    return line_system(Path(sys.executable), "benchmarks.systems", name, shape, dtype, log=log, threads=threads)


def check(systems: dict[str, System], vocab: int, *, exact: bool) -> None:
    """Compare greedy answers: in float32 all tokens must be equal, in other dtypes most of the first tokens.

    With random weights the two most likely tokens are often closer than bfloat16's rounding, so that the order of sums
    decides between them; an engine that is wrong has none of them right.

    Raises:
        SystemExit: the engine's answers differ; nothing is measured then.
    """
    draw = random.Random(1)
    jobs: list[Job] = [([draw.randrange(vocab) for _ in range(length)], 12) for length in (5, 17, 33, 70) * 3]
    results = {name: run(jobs) for name, run in systems.items()}
    expected = results[STATIC]
    for name, answers in results.items():
        same = sum(a == b for rows in zip(answers, expected, strict=True) for a, b in zip(*rows, strict=True))
        first = sum(a[0] == b[0] for a, b in zip(answers, expected, strict=True))
        print(f"{name:28} {first} of {len(jobs)} first tokens as `generate`,", end=" ")
        print(f"{same} of all {sum(new for _, new in jobs)}", flush=True)
        if name == OURS and (answers != expected if exact else first <= len(jobs) // 2):
            raise SystemExit("the engine's answers are not those of transformers")


def copy_rate(like: Any, clock: Clock) -> float:
    """Bytes per second read and written by a large copy on the device of `like`."""
    source = torch.ones(64 * 1024**2, device=like.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _median(clock, target.copy_, source)


def gemm_rate(like: Any, clock: Clock) -> float:
    """Operations per second of a large matrix product on the device and in the dtype of `like`."""
    side = 2048
    left, right = (torch.randn(side, side, device=like.device).to(like.dtype) for _ in range(2))
    return 2 * side**3 / _median(clock, torch.mm, left, right)


def _median(clock: Clock, call: Callable[..., object], *arguments: object, times: int = 8) -> float:
    """Seconds of a short call, averaged over `times` calls, since the clock may have a resolution of 10 ms."""

    def calls() -> None:
        for _ in range(times):
            call(*arguments)

    return median(_seconds(clock, calls) for _ in range(5)) / times


def _seconds(clock: Clock, call: Callable[..., object], *arguments: object) -> float:
    _synchronize()
    began = clock()
    call(*arguments)
    _synchronize()
    return clock() - began


def _synchronize() -> None:
    if accelerator() is not None:
        torch.accelerator.synchronize()


if __name__ == "__main__":
    main()
