"""Which modules of a model are replaced by fused ones, in which order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from backends.native.engine.attention.interface import NAME, text_part
from backends.native.engine.layers.fused_attention import FusedAttention
from backends.native.engine.layers.fused_decoder_layer import FusedDecoderLayer
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fused_norm import FusedCenteredNorm, FusedGatedNorm, FusedNorm, FusedWeightlessNorm
from backends.native.engine.layers.fused_residuals import FusedResiduals
from backends.native.engine.layers.fusion import replace_modules


@torch.inference_mode()
def fuse_layers(model: Any, longest: int, *, join: bool = True) -> None:
    """Replace the attention, MLP and norm modules of `model` that can be replaced, in place.

    Args:
        model: a causal language model that will run packed; its attention implementation is set to ours.
        longest: the most tokens of a sequence.
        join: whether linear layers may be joined; LoRA adapters must find them under their own names.
    """
    text = text_part(model)
    # Before `FusedAttention.of`, which probes modules by our attention function.
    text.set_attn_implementation(NAME)
    fuse_modules(text, longest, join=join)
    _fuse_norms(model)


@torch.inference_mode()
def fuse_modules(parent: Any, longest: int, *, join: bool = True) -> None:
    """Replace the attention, MLP and norm modules below `parent` that can be replaced, in place.

    Args:
        parent: holds modules whose attention implementation is set to ours.
        longest: the most tokens of a sequence.
        join: see `fuse_layers`.
    """
    # Attention first: it reads `variance_epsilon` of the heads' norms, which the `FusedNorm` put in their place does
    # not have.
    replace_modules(parent, partial(FusedAttention.of, longest=longest, join=join))
    replace_modules(parent, partial(FusedMLP.of, join=join))
    _fuse_norms(parent)


def _fuse_norms(parent: Any) -> None:
    for kind in (FusedNorm, FusedWeightlessNorm, FusedCenteredNorm, FusedGatedNorm):
        replace_modules(parent, kind.of)


def fuse_decoder_layers(model: Any) -> None:
    """Replace the decoder layers of `model` that can be replaced, in place.

    After `fuse_layers` and `pack_linears`: only layers of which all parts were replaced qualify.
    """
    text = text_part(model)
    kind: Any = FusedDecoderLayer if model.device.type == "cpu" else FusedResiduals
    replace_modules(text, kind.of)
    for module in text.modules():
        if isinstance(module, torch.nn.ModuleList):
            kind.chain(list(module))
