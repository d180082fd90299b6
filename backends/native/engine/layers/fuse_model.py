"""Which parts of a model are joined, and then which layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from backends.native.engine.attention.interface import NAME, text_part
from backends.native.engine.layers.fused_attention import FusedAttention
from backends.native.engine.layers.fused_decoder_layer import FusedDecoderLayer
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fused_norm import FusedNorm
from backends.native.engine.layers.fusion import replace_parts


@torch.inference_mode()
def fuse_layers(model: Any, longest: int, *, join: bool = True) -> None:
    """Replace the parts of `model` that can be, in place.

    Args:
        model: a causal language model that will run packed; its attention is set to ours.
        longest: tokens that a sequence may have.
        join: whether its linear layers may be joined; LoRA adapters must find them under their own names.
    """
    text = text_part(model)
    text.set_attn_implementation(NAME)
    replace_parts(text, partial(FusedAttention.of, longest=longest, join=join))
    replace_parts(text, partial(FusedMLP.of, join=join))
    replace_parts(model, FusedNorm.of)


def fuse_decoder_layers(model: Any) -> None:
    """Replace the layers of `model` that can be, in place; their parts were joined and their linear layers packed."""
    replace_parts(text_part(model), FusedDecoderLayer.of)
