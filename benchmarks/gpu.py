"""Compare the native engine with transformers' `generate_batch` and with vLLM, and say what its steps take.

    python -m benchmarks.gpu [FOLDER] [--dtype bfloat16] [--sequences 1 8 32 256] [--scale 1] [--vllm PYTHON]

Over the checkpoint in FOLDER, or random weights of Qwen2.5 0.5B's shape, on the accelerator that torch finds (or the
CPU, whose figures say nothing). Each system runs in a process of its own, one after the other, since each takes the
memory that is free. vLLM is compared if it is installed, here or in the environment of PYTHON.

Printed are tokens per second of decode, and of nano-vllm's workload: 256 requests of 100 to 1,024 tokens in and out,
divided by `--scale`; then the parts of a decode step of ours, with a wait for the device after each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from backends.native.engine.devices import default_device
from benchmarks.gpu_systems import BREAKDOWN, OURS, PARTS, TRANSFORMERS, VLLM
from benchmarks.lines import line_system
from benchmarks.shapes import build
from benchmarks.systems import System
from benchmarks.workloads import Job, decoding, workloads

SHAPE = "qwen2.5-0.5b"
_NEW = 65
_VOCABULARY = 10_000  # of random prompts: less than any model's


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 8, 32, 256])
    parser.add_argument("--scale", type=int, default=1, help="divides the published mixed workload")
    parser.add_argument("--vllm", type=Path, default=Path(sys.executable), help="a Python that has vLLM")
    given = parser.parse_args()
    print(
        f"torch {torch.__version__}, {default_device()}, {given.folder or f'random weights of {SHAPE}'}, {given.dtype}"
    )
    jobs = {f"decode of {count}": decoding(_VOCABULARY, count, _NEW) for count in given.sequences}
    mixed = workloads(_VOCABULARY, scale=given.scale)["mixed"]
    pythons = {OURS: Path(sys.executable), TRANSFORMERS: Path(sys.executable)}
    if has_vllm(given.vllm):
        pythons[VLLM] = given.vllm
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or saved(Path(temporary, SHAPE), given.dtype)
        for name, python in pythons.items():
            log = Path(temporary, f"{name}.log")
            with line_system(python, "benchmarks.gpu_systems", name, str(folder), given.dtype, log=log) as run:
                rates = {workload: decode_rate(run, some) for workload, some in jobs.items()}
                rates["mixed"] = sum(new for _, new in mixed) / seconds(run, mixed)
            print(f"{name:16}" + "  ".join(f"{workload}: {rate:.1f}" for workload, rate in rates.items()), "tokens/s")
        log = Path(temporary, f"{BREAKDOWN}.log")
        with line_system(
            Path(sys.executable), "benchmarks.gpu_systems", BREAKDOWN, str(folder), given.dtype, log=log
        ) as run:
            for workload, some in jobs.items():
                parts = zip(PARTS, run(some), strict=True)
                found = "  ".join(f"{part} {sum(taken) / len(taken) / 1000:.2f}" for part, taken in parts)
                print(f"a step of {workload:16} {found} ms", flush=True)


def has_vllm(python: Path) -> bool:
    """Whether an environment has vLLM."""
    command = [str(python), "-c", "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"]
    return subprocess.run(command, check=False).returncode == 0


def saved(folder: Path, dtype: str) -> Path:
    """A checkpoint of random weights."""
    build(SHAPE, getattr(torch, dtype), torch.device("cpu")).save_pretrained(folder)
    return folder


def decode_rate(run: System, jobs: Sequence[Job]) -> float:
    """Tokens per second, without the time to the first ones."""
    first = seconds(run, [(prompt, 1) for prompt, _ in jobs])
    return sum(new - 1 for _, new in jobs) / (seconds(run, jobs) - first)


def seconds(run: System, jobs: Sequence[Job]) -> float:
    """Of the second of two runs: what is compiled or captured is so in the first."""
    run(jobs)
    began = time.perf_counter()
    run(jobs)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
