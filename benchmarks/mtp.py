"""What drafts by a model's own MTP layer gain: tokens per second with them and without, in turns.

    python -m benchmarks.mtp [--rounds 3] [--tokens 120] [--dtype float32] [--layers 12] [--experts 8] [--width 512]

A random model of GLM 4.5's class with a layer that is nearly always right and with one that hardly ever is, for one
sequence and for eight, at temperature 1. Both engines share one model in memory, their tokens must be equal, and
seconds are CPU time of one thread (`benchmarks.speculation`). The goal: never less than 0.97.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from random import Random
from statistics import median

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from backends.native.protocol.engine_options import MTP, EngineOptions
from backends.native.protocol.messages import Ping, Pong, SamplingParams, Submit
from benchmarks.speculation import engines, measure

VOCABULARY = 4096


def main() -> None:
    """Print a line for each layer and number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    for right in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), right=right, layers=given.layers, experts=given.experts, width=given.width)
            for count in (1, 8):
                # Anew: what an engine has learned of one workload would count in the next.
                options = EngineOptions(folder, dtype=given.dtype, device="cpu", threads=1, kv_tokens=16_384)
                without, ahead, _ = engines(options, MTP)
                rounds = [measure(without, ahead, _asked(turn, count, given.tokens)) for turn in range(given.rounds)]
                pong = ahead.handle(0, Ping(0))
                assert isinstance(pong, Pong)
                print(
                    f"{'right' if right else 'wrong'} drafts, {count} sequences: "
                    f"{median(tokens / one for tokens, one, _ in rounds):6.1f} tokens/s, "
                    f"with drafts {median(tokens / two for tokens, _, two in rounds):6.1f}, "
                    f"ratio {median(one / two for _, one, two in rounds):.3f}, "
                    f"drafted {pong.draft_tokens}, accepted {pong.accepted_tokens}",
                    flush=True,
                )


def write(folder: Path, *, right: bool, layers: int, experts: int, width: int) -> None:
    """A checkpoint with an MTP layer behind the last layer.

    Args:
        folder: where to.
        right: whether layers add next to nothing, so that model and MTP layer predict by the newest token alone.
        layers: of the model.
        experts: of each layer but the first.
        width: of the hidden states.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "glm4_moe",
        num_hidden_layers=layers + 1,
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        moe_intermediate_size=width,
        num_attention_heads=width // 64,
        num_key_value_heads=2,
        head_dim=64,
        n_routed_experts=experts,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).float()
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            little = right and ("o_proj" in name or "down_proj" in name)
            parameter.data.normal_(0.0, (0.002 if little else 1.0) / parameter.shape[-1] ** 0.5)
    model.lm_head.weight.data.normal_(0.0, 2.0 / width**0.5)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    own = {f"{name}.weight": torch.ones(width) for name in ("enorm", "hnorm", "shared_head.norm")}
    projection = torch.eye(width, 2 * width) if right else torch.randn(width, 2 * width) * (2 * width) ** -0.5
    own["eh_proj.weight"] = projection
    own["shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    own["embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors |= {f"model.layers.{layers}.{name}": tensor for name, tensor in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": layers}))


def _asked(turn: int, count: int, tokens: int) -> list[Submit]:
    """Requests with random prompts of 40 tokens and more."""
    draw = Random(turn)
    return [
        Submit(
            turn * count + number,
            tuple(draw.randrange(3, VOCABULARY) for _ in range(40 + 3 * number)),
            tokens,
            SamplingParams(temperature=1.0, seed=turn * count + number),
        )
        for number in range(count)
    ]


if __name__ == "__main__":
    main()
