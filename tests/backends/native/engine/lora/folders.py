"""LoRA adapters in peft's format with random matrices, written and merged without peft or the code under test."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

# By family, what the tests adapt: a part of the layers, so that others stay bare.
TARGETS = {
    "llama": r".*(q_proj|v_proj|down_proj)",
    "gemma2": r".*(q_proj|o_proj|gate_proj)",
    "phi3": r".*(qkv_proj|down_proj)",
    "gpt2": r".*(c_attn|mlp\.c_proj)",
    "gpt_oss": r".*(k_proj|o_proj)",
    "lfm2": r".*(in_proj|w2|q_proj)",
    "bloom": r".*(query_key_value|dense_4h_to_h)",
    "qwen2": r".*(q_proj|v_proj|down_proj)",
    "qwen3": r".*(q_proj|k_proj|up_proj)",
    "mistral": r".*(v_proj|o_proj|gate_proj)",
    "gemma3_text": r".*(q_proj|o_proj|gate_proj)",
    "mpt": r".*(Wqkv|down_proj)",
    "falcon": r".*(query_key_value|dense_4h_to_h)",
    "gptj": r".*(q_proj|fc_out)",
    "codegen": r".*(qkv_proj|fc_out)",
    "llama4_text": r".*(q_proj|o_proj)",
    "mixtral": r".*(q_proj|o_proj)",
}


def save(folder: Path, model: Any, targets: str, seed: int, *, r: int = 4, alpha: float = 6, **more: Any) -> Path:
    """Write a LoRA adapter for the layers of `model` that the expression `targets` names."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        if re.fullmatch(targets, name) and hasattr(layer, "weight"):
            outputs, inputs = layer.weight.shape if isinstance(layer, nn.Linear) else layer.weight.T.shape
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(r, inputs, generator=generator) / inputs**0.5
            tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, r, generator=generator) / r**0.5
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": r, "lora_alpha": alpha, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | more))
    return folder


def merged(model: Any, folder: Path) -> Any:
    """A copy of `model` with a LoRA adapter in its weights."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    found = copy.deepcopy(model)
    for name, layer in found.named_modules():
        key = f"base_model.model.{name}"
        if f"{key}.lora_A.weight" in tensors:
            delta = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"] * scaling
            layer.weight.data += delta if isinstance(layer, nn.Linear) else delta.T
    return found
