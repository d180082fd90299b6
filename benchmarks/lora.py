"""The cost of LoRA adapters: decode and prefill of a batch of 16 with none, one and four of them.

    python -m benchmarks.lora [--layers 8] [--rank 16] [--rounds 10]

Random weights of the 0.5B Qwen2.5 shape with fewer layers, and LoRA adapters on all of its linear layers but the last.
Prints the best of several rounds, taken in turns, in CPU time, beside what the same model without LoRA adapters does.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from backends.native.engine.layers.fuse_model import fuse_layers
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.lora.layers import LoraAdapter, LowRank, inject_lora
from benchmarks.systems import System, interlingua
from benchmarks.workloads import Job

BATCH, VOCAB = 16, 32_000
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
NAMES = ("a", "b", "c", "d")
BARE = "no LoRA adapters loaded"


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = build(given.layers)
    lora_adapters = {name: draw(model, given.rank) for name in NAMES}
    fuse_layers(model, model.config.max_position_embeddings, join=False)
    pack_linears(model)
    bare = {layer: model.get_submodule(layer) for layer in lora_adapters["a"]}
    inject_lora(model, lora_adapters)
    systems = {
        BARE: without(model, bare, interlingua(model)),
        "none in use": interlingua(model),
        "one, for all": interlingua(model, lora_adapters=NAMES[:1]),
        "one, for every other": interlingua(model, lora_adapters=("", "a")),
        "four, by turns": interlingua(model, lora_adapters=NAMES),
        "four and none, by turns": interlingua(model, lora_adapters=("", *NAMES)),
    }
    print(f"torch {torch.__version__}, 1 thread, {given.layers} layers, rank {given.rank}, float32")
    for workload, jobs in workloads().items():
        times = fastest(systems, jobs, given.rounds)
        tokens = sum(new if new > 1 else len(prompt) for prompt, new in jobs)
        print(f"\n{workload}")
        for name, seconds in times.items():
            print(f"{name:24} {tokens / seconds:8.0f} tokens/s   {times[BARE] / seconds:5.2f}", flush=True)


def without(model: Any, bare: dict[str, Any], system: System) -> System:
    """The same system with the original layers, at the same addresses in memory."""

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        adapted = {layer: model.get_submodule(layer) for layer in bare}
        for layer, linear in bare.items():
            model.set_submodule(layer, linear)
        answers = system(jobs)
        for layer, wrapped in adapted.items():
            model.set_submodule(layer, wrapped)
        return answers

    return run


def fastest(systems: dict[str, System], jobs: Sequence[Job], rounds: int) -> dict[str, float]:
    """The least CPU seconds of each system."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            began = time.process_time()
            run(jobs)
            times[name].append(time.process_time() - began)
    return {name: min(taken) for name, taken in times.items()}


def build(layers: int) -> Any:
    """Build the base model."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=layers, **SHAPE)).eval()


def draw(model: Any, rank: int) -> LoraAdapter:
    """A random LoRA adapter."""
    return {
        name: LowRank(torch.randn(rank, layer.in_features) / 100, torch.randn(rank, layer.out_features) / 100)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name != "lm_head"
    }


def workloads() -> dict[str, list[Job]]:
    """The same jobs at every call."""
    drawn = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [drawn.randrange(VOCAB) for _ in range(length)]

    return {
        "decode, batch 16": [(prompt(4), 17) for _ in range(BATCH)],
        "prefill, 16 prompts of 64 tokens": [(prompt(64), 1) for _ in range(BATCH)],
    }


if __name__ == "__main__":
    main()
