"""Models of named shapes with random weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from backends.native.engine.layers.fuse_model import fuse_decoder_layers, fuse_layers
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.layers.quantized_linear import quantize_linears

SHAPES = {
    "qwen2.5-0.5b": Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "llama-8b": LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    ),
}


def build(shape: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Random weights, wide enough that the next token depends on the whole context. Always the same on one device."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype).eval()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    return model


def as_served(model: Any, bits: int = 0) -> Any:
    """A copy with the layers that the engine would use; `bits`: with quantized weights."""
    own = copy.deepcopy(model)
    fuse_layers(own, own.config.max_position_embeddings)
    if bits:
        quantize_linears(own, bits)
    pack_linears(own)
    fuse_decoder_layers(own)
    return own
