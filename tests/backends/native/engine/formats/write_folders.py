"""Folders of a small quantized Llama, written by the tools that users quantize with, and the logits of their weights.

    python write_folders.py OUT

Run in the environment of `make test-formats`. `OUT/NAME` is a folder, and `OUT/NAME.safetensors` has the logits of
`TOKENS` that plain layers give with the weights as the tool itself expands them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bitsandbytes as bnb
import torch
from compressed_tensors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

TOKENS = tuple(range(12))
GROUP = 32


def small() -> LlamaForCausalLM:
    """The model that is quantized; the same at every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """All but the output layer, which the tools leave alone."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            yield name, module


def logits_of(weights: dict[str, Tensor]) -> Tensor:
    """Of the model with other weights in its linear layers."""
    model = small()
    for name, module in linears(model):
        module.weight.data = weights[name].float()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


# --- compressed-tensors ------------------------------------------------------------------------------------------


def compressed(preset: str) -> Callable[[Path], dict[str, Tensor]]:
    """One of its presets, with ranges of the weights themselves; expanded by its own decompression."""

    def write(folder: Path) -> dict[str, Tensor]:
        model = small()
        scheme = preset_name_to_scheme(preset, ["Linear"])
        assert scheme.weights is not None
        if scheme.weights.group_size:
            scheme.weights.group_size = GROUP
        if scheme.weights.block_structure:
            scheme.weights.block_structure = [GROUP, GROUP]
        apply_quantization_config(model, QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"]))
        for _, module in linears(model):
            scales, zeros = calculate_qparams(*_ranges(module.weight, scheme.weights), scheme.weights)
            module.weight_scale.data.copy_(scales.view_as(module.weight_scale))
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.data.copy_(zeros.view_as(module.weight_zero_point))
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)
        compressor.decompress_model(model)
        return {name: module.weight for name, module in linears(model)}

    return write


def _ranges(weight: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    shapes = {
        "tensor": (weight.reshape(1, -1), (1,)),
        "channel": (weight, (1,)),
        "group": (weight.view(rows, -1, GROUP), (2,)),
        "block": (weight.view(rows // GROUP, GROUP, columns // GROUP, GROUP), (1, 3)),
    }
    shaped, dimensions = shapes[args.strategy]
    return shaped.amin(dimensions), shaped.amax(dimensions)


# --- bitsandbytes, through transformers --------------------------------------------------------------------------


def with_bits(**options: Any) -> Callable[[Path], dict[str, Tensor]]:
    """Expanded by its own functions."""

    def write(folder: Path) -> dict[str, Tensor]:
        with TemporaryDirectory() as plain:
            small().save_pretrained(plain)
            made = BitsAndBytesConfig(**options)
            model = LlamaForCausalLM.from_pretrained(plain, quantization_config=made, device_map="cpu")
        model.save_pretrained(folder)
        return {name: _expanded(module) for name, module in linears(model)}

    return write


def _expanded(module: Any) -> Tensor:
    if isinstance(module, bnb.nn.Linear4bit):
        return bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    return bnb.functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)


FOLDERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    **{
        f"compressed-tensors-{preset}": compressed(preset)
        for preset in ("W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK")
    },
    "bitsandbytes-nf4": with_bits(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes-nf4-nested": with_bits(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bitsandbytes-fp4": with_bits(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bitsandbytes-int8": with_bits(load_in_8bit=True),
}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name, write in FOLDERS.items():
        save_file({"logits": logits_of(write(out / name))}, out / f"{name}.safetensors")
