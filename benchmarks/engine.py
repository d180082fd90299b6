"""The native engine beside transformers' own `generate` and `generate_batch`: same weights, threads and run.

    python -m benchmarks.engine [--dtypes float32 bfloat16] [--rounds 3] [--threads N] [--only WORD ...]

Makes random weights on the spot (the shape of Qwen2.5 0.5B on a CPU, of Llama 8B on a CUDA device), checks that the
answers are equal, then measures in turns and prints medians. Nothing is downloaded. What the machine can do at most, in
the same run, stands beside. Time is the wall's; with `--threads 1` it is the processor's, which a busy machine disturbs
less.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch

from backends.native.engine.machine import keep_freed_memory, physical_cores
from backends.native.engine.quantised_linear import BITS
from benchmarks.overhead import print_overhead
from benchmarks.shapes import as_served, build
from benchmarks.systems import System, continuous, copying, interlingua, static
from benchmarks.workloads import EIGHT, EVERY_ROW_ITS_OWN, ONE, PREFILL, PREFIX, Job, workloads

Clock = Callable[[], float]
OURS, STATIC, BATCH = "interlingua", "generate", "generate_batch"


def main() -> None:
    """Run and print."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = device.type == "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"] if on_cpu else ["bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
    parser.add_argument("--only", nargs="*", default=[""], help="workloads whose names hold one of these words")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if on_cpu and given.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {device}, {given.threads} threads, medians of {given.rounds}, {clock.__name__}")
    print_overhead()
    for name in given.dtypes:
        model = build("qwen2.5-0.5b" if on_cpu else "llama-8b", getattr(torch, name), device)
        measure(model, Table(given.rounds, given.only, clock), scale=8 if on_cpu else 1)


class Table:
    """Measures workloads and prints a line for each."""

    def __init__(self, rounds: int, words: Sequence[str], clock: Clock) -> None:
        self._rounds = rounds
        self._words = words
        self.clock = clock

    def add(self, workload: str, jobs: Sequence[Job], systems: dict[str, System]) -> dict[str, float]:
        """Median seconds of each, measured in turns; of decoding, those after the first token. Prints tokens a second,
        and how much faster the first is.
        """
        if not any(word in workload for word in self._words):
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


def measure(model: Any, table: Table, *, scale: int) -> None:
    """All workloads in one precision."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    multiplied = gemm_rate(model, table.clock)
    copied = copy_rate(model, table.clock)
    print(f"\n{model.dtype}: weights {weights / 1e9:.2f} GB, copy {copied / 1e9:.1f} GB/s (read and", end=" ")
    print(f"written), product of 2048² matrices {multiplied / 1e9:.0f} GFLOP/s", flush=True)
    own, jobs = as_served(model), workloads(model.config.vocab_size, scale=scale)
    greedy = interlingua(own)
    with ExitStack() as stack:
        peers = {OURS: greedy, STATIC: static(model), BATCH: stack.enter_context(continuous(model))}
        keep_freed_memory()  # as the engine's process does
        check(peers, model.config.vocab_size, exact=model.dtype == torch.float32)
        for workload, asked in jobs.items():
            beside = {ONE: {"copying the weights": copying(model)}, PREFIX: {"without prefix cache": greedy}}
            ours = {OURS: interlingua(own, caching=True)} if workload == PREFIX else {}
            times = table.add(workload, asked, peers | ours | beside.get(workload, {}))
            if workload == PREFILL and times:
                operations = 2 * len(asked[0][0]) * (model.num_parameters() - model.lm_head.weight.numel())
                print(f"{'':28} {operations / times[OURS] / multiplied:.0%} of the product's rate")
    if model.device.type == "cpu" and model.dtype == torch.bfloat16:
        rounded = {name: interlingua(as_served(model, bits)) for name, bits in BITS.items()}
        table.add(f"{ONE}, rounded weights", jobs[ONE], {"bfloat16": greedy} | rounded)
    sampled = {"every row its own": interlingua(own, EVERY_ROW_ITS_OWN), "all greedy": greedy}
    table.add("decode, mixed sampling", jobs[EIGHT], sampled)


def check(systems: dict[str, System], vocab: int, *, exact: bool) -> None:
    """Greedy answers must be the same: in float32 to the last token, in other dtypes most of the first ones.

    Raises:
        SystemExit: they are not; nothing is measured then.
    """
    draw = random.Random(1)
    jobs: list[Job] = [([draw.randrange(vocab) for _ in range(length)], 12) for length in (5, 17, 33, 70)]
    told = {name: run(jobs) for name, run in systems.items()}
    expected = told[STATIC]
    for name, answers in told.items():
        same = sum(a == b for rows in zip(answers, expected, strict=True) for a, b in zip(*rows, strict=True))
        print(f"{name:28} {same} of {sum(new for _, new in jobs)} tokens as `generate`", flush=True)
        first = sum(a[0] == b[0] for a, b in zip(answers, expected, strict=True))
        if name == OURS and (answers != expected if exact else 2 * first <= len(jobs)):
            raise SystemExit("the engine's answers are not those of transformers")


def copy_rate(model: Any, clock: Clock) -> float:
    """Bytes a second read and written by a large copy."""
    source = torch.ones(64 * 1024**2, device=model.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(_seconds(clock, target.copy_, source) for _ in range(7))


def gemm_rate(model: Any, clock: Clock) -> float:
    """Operations a second of a large matrix product."""
    side = 2048
    left, right = (torch.randn(side, side, device=model.device).to(model.dtype) for _ in range(2))
    return 2 * side**3 / median(_seconds(clock, torch.mm, left, right) for _ in range(7))


def _seconds(clock: Clock, call: Callable[..., object], *arguments: object) -> float:
    _synchronize()
    began = clock()
    call(*arguments)
    _synchronize()
    return clock() - began


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
