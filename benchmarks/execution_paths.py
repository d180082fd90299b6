"""Compare a decode step of 1, 8 and 32 sequences one by one, with stacked states, and packed; CPU time, in turns.

    python -m benchmarks.execution_paths [TYPE ...] [--dtype float32] [--rounds 3]

One thread. Models have 8 layers of width 768 and random weights. Types that the packed path does not run are measured
without it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loading.self_check import why_not_packed
from backends.native.engine.loading.stacking_check import find_stacking
from backends.native.engine.runner.packed import PackedRunner, Runner
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from benchmarks.shapes import as_served

_SIZES = {"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8} | {
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
_HEADS = {"num_key_value_heads": 4}
_DELTA_NET = _HEADS | {
    "head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
_MAMBA_2 = _HEADS | {"mamba_n_heads": 24, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64}
TYPES: dict[str, dict[str, Any]] = {
    "lfm2": _HEADS | {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "qwen3_5_text": _DELTA_NET,
    "qwen3_next": _DELTA_NET | _EXPERTS | {"shared_expert_intermediate_size": 1024},
    "olmo_hybrid": _DELTA_NET,
    "kimi_linear": _EXPERTS
    | {"num_key_value_heads": 12, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2, "mlp_layer_types": ["dense"] * 8}
    | {"linear_head_dim": 64, "linear_num_heads": 12},
    "mamba": {},
    "falcon_mamba": {},
    "mamba2": {"num_heads": 24, "head_dim": 64, "n_groups": 1, "state_size": 64},
    "falcon_h1": _MAMBA_2 | {"mamba_d_ssm": 1536},
    "bamba": _MAMBA_2 | {"attn_layer_indices": [3, 7]},
    "granitemoehybrid": _MAMBA_2
    | {"layer_types": (["mamba"] * 3 + ["attention"]) * 2, "num_local_experts": 0, "shared_intermediate_size": 2048}
    | {"position_embedding_type": "rope"},
    "nemotron_h": _HEADS
    | {"layers_block_type": ["mamba", "mlp", "attention", "mlp"] * 2, "head_dim": 64, "ssm_state_size": 64}
    | {"mamba_num_heads": 24, "mamba_head_dim": 64, "n_groups": 1},
    "zamba2": {"layers_block_type": ["mamba", "mamba", "mamba", "hybrid"] * 2, "mamba_d_state": 64, "n_mamba_heads": 24}
    | {"mamba_ngroups": 1, "num_mem_blocks": 1, "use_shared_attention_adapter": False, "num_key_value_heads": 12},
    "recurrent_gemma": {"num_key_value_heads": 1, "lru_width": 768, "head_dim": 64},
    "jamba": _HEADS | {"num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 4, "attn_layer_offset": 3},
    "rembert": {"input_embedding_size": 256, "output_embedding_size": 768, "is_decoder": True},
    "roformer": {"embedding_size": 768, "is_decoder": True},
}
_COUNTS = (1, 8, 32)
_PROMPT, _BLOCK, _STEPS = 32, 16, 2


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", default=list(TYPES), metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.types:
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **_SIZES | TYPES[name])
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, given.dtype)).eval()
        with torch.inference_mode():
            measure(name, model, given.rounds)


def measure(name: str, model: Any, rounds: int) -> None:
    """Print a line for each number of sequences."""
    stacking = find_stacking(model)
    make: dict[str, Callable[[], Runner]] = {
        "one by one": lambda: PerSequenceRunner(model),
        f"stacked ({stacking})": lambda: PerSequenceRunner(model, stacking=stacking),
    }
    if why_not_packed(model) is None:
        packed = as_served(model)
        make["packed"] = lambda: PackedRunner(packed, KVCache(_COUNTS[-1] * (_PROMPT // _BLOCK + 2), _BLOCK))
    for count in _COUNTS:
        systems = {path: begin(runner(), count) for path, runner in make.items()}
        times: dict[str, list[float]] = {path: [] for path in systems}
        for _ in range(rounds):
            for path, step in systems.items():
                start = time.process_time()
                for _ in range(_STEPS):
                    step()
                times[path].append((time.process_time() - start) / _STEPS)
        first = median(times["one by one"])
        found = "  ".join(f"{path} {1000 * median(t):.1f} (x{first / median(t):.2f})" for path, t in times.items())
        print(f"{name:10} {count:2} sequences, ms a step: {found}", flush=True)


def begin(runner: Runner, count: int) -> Callable[[], None]:
    """Run the prompts and a first step of `count` sequences; returns what runs a further step."""
    sequences = [Sequence(0, Submit(index, tuple(range(3, 3 + _PROMPT)), 1), index) for index in range(count)]
    each = _PROMPT // _BLOCK + 2
    for index, sequence in enumerate(sequences):
        sequence.blocks.extend(range(each * index, each * (index + 1)))
        runner.run([Work(sequence, 0, _PROMPT, samples=True)])

    def step() -> None:
        for sequence in sequences:
            sequence.tokens.append(5)
        runner.run([Work(sequence, len(sequence.tokens) - 1, 1, samples=True) for sequence in sequences])

    step()
    return step


if __name__ == "__main__":
    main()
