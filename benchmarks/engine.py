"""The native engine beside transformers' own `generate` and `generate_batch`: same weights, threads and run.

    python -m benchmarks.engine [--dtypes float32 bfloat16] [--rounds 3] [--threads N]

Makes random weights of the 0.5B Qwen2.5 shape on the spot, checks that the answers are equal, then measures in turns
and prints medians. Nothing is downloaded. What the machine can do at most, in the same run, stands beside.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from backends.native.engine.machine import physical_cores
from backends.native.engine.packed_linear import pack_linears
from backends.native.messages import SamplingParams
from benchmarks.overhead import print_overhead
from benchmarks.systems import Job, System, continuous, interlingua, static

VOCAB = 151_936
QWEN_HALF_B = {
    "vocab_size": VOCAB,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
OURS = "interlingua"
MIXED = (
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1),
    SamplingParams(temperature=1.0, top_p=0.95, seed=2),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.5),
    SamplingParams(),
)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads")
    print_overhead()
    for name in given.dtypes:
        measure(getattr(torch, name), given.rounds)


def measure(dtype: torch.dtype, rounds: int) -> None:
    """All workloads in one precision."""
    model = build(dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    copied, multiplied = copy_rate(), gemm_rate(dtype)
    print(f"\n{dtype}: weights {weights / 1e9:.2f} GB, copy {copied / 1e9:.1f} GB/s (read and written),", end=" ")
    print(f"product of 2048² matrices {multiplied / 1e9:.0f} GFLOP/s", flush=True)
    own = copy.deepcopy(model)
    pack_linears(own)
    with ExitStack() as stack:
        peers: dict[str, System] = {OURS: interlingua(own), "generate": static(model)}
        peers["generate_batch"] = stack.enter_context(continuous(model))
        check(peers, exact=dtype == torch.float32)
        for workload, jobs in workloads().items():
            times = alternate(peers, jobs, rounds)
            tell(workload, jobs, times)
            if workload == "decode, batch 1":
                step = times[OURS] / jobs[0][1]
                print(f"{'':24} {weights / copied / step:.0%} of what the copy rate allows")
        everyone = {"all greedy": peers[OURS], "every row its own": interlingua(own, MIXED)}
        jobs = workloads()["decode, batch 8"]
        tell("sampling, batch 8", jobs, alternate(everyone, jobs, rounds))


def build(dtype: torch.dtype) -> Any:
    """Random weights, wide enough that the next token depends on the whole context."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**QWEN_HALF_B)).eval()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    return model.to(dtype)


def workloads() -> dict[str, list[Job]]:
    """The same jobs at every call."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(VOCAB) for _ in range(length)]

    return {
        "decode, batch 1": [(prompt(32), 32)],
        "decode, batch 8": [(prompt(32), 32) for _ in range(8)],
        "decode, batch 32": [(prompt(32), 16) for _ in range(32)],
        "prefill, 1024 tokens": [(prompt(1024), 1)],
        "mixed, 16 requests": [(prompt(draw.randint(8, 80)), draw.randint(8, 80)) for _ in range(16)],
    }


def check(systems: dict[str, System], *, exact: bool) -> None:
    """Greedy answers must be the same: in float32 to the last token, in other dtypes to the first.

    Raises:
        SystemExit: they are not; nothing is measured then.
    """
    draw = random.Random(1)
    jobs: list[Job] = [([draw.randrange(VOCAB) for _ in range(length)], 12) for length in (5, 17, 33, 70)]
    told = {name: run(jobs) for name, run in systems.items()}
    expected = told["generate"]
    for name, answers in told.items():
        same = sum(a == b for rows in zip(answers, expected, strict=True) for a, b in zip(*rows, strict=True))
        print(f"{name:24} {same} of {sum(new for _, new in jobs)} tokens as `generate`", flush=True)
        if name == OURS and (answers != expected if exact else [a[0] for a in answers] != [b[0] for b in expected]):
            raise SystemExit("the engine's answers are not those of transformers")


def alternate(systems: dict[str, System], jobs: Sequence[Job], rounds: int) -> dict[str, float]:
    """Median seconds of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            times[name].append(_seconds(lambda run=run: run(jobs)))  # type: ignore[misc]
    return {name: median(taken) for name, taken in times.items()}


def tell(workload: str, jobs: Sequence[Job], times: dict[str, float]) -> None:
    """Tokens a second of each, and how much faster the first is."""
    first = next(iter(times.values()))
    tokens = sum(len(prompt) if new == 1 else new for prompt, new in jobs)
    rates = "  ".join(f"{name} {tokens / taken:.1f} (x{taken / first:.2f})" for name, taken in times.items())
    print(f"{workload:24} tokens/s: {rates}", flush=True)


def copy_rate() -> float:
    """Bytes a second read and written by a large copy."""
    source = torch.ones(64 * 1024**2)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(_seconds(lambda: target.copy_(source)) for _ in range(7))


def gemm_rate(dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product."""
    side = 2048
    left, right = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    return 2 * side**3 / median(_seconds(lambda: left @ right) for _ in range(7))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
