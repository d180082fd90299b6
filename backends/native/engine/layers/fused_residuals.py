"""Decoder layers on accelerators whose sums and norms are one kernel: the sum of a residual and the norm of the sum.

A layer is replaced if its parts were (`FusedNorm`, `FusedAttention`, `FusedMLP`) and it gives the same output as they
do in its order: norm, attention, sum, norm, feed-forward, sum. The last sum is taken with the norm of the next layer,
which finds it in the step's metadata. On CPUs several layers are one call (`fused_decoder_layer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.attention.interface import AttentionMetadata, Forward, current, running
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.layers.comparison import Routine
from backends.native.engine.layers.fused_attention import FusedAttention
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fused_norm import FusedNorm
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.routines import find_routine

_PARTS = {
    "input_layernorm": FusedNorm,
    "self_attn": FusedAttention,
    "post_attention_layernorm": FusedNorm,
    "mlp": FusedMLP,
}
_AHEAD = "normed ahead"
"""Of `AttentionMetadata.plans`: a layer's output, its norm, and the norm's module."""


class FusedResiduals(nn.Module):
    """Replaces a decoder layer.

    Args:
        layer: the model's own, its parts fused.
        add_rms_norm: the routine.
    """

    def __init__(self, layer: Any, add_rms_norm: Routine) -> None:
        super().__init__()
        # Under their own names, where LoRA adapters look for them.
        for name in _PARTS:
            setattr(self, name, getattr(layer, name))
        self._replaced = (layer,)  # in a tuple: as a module of its own it would be listed twice
        self.following: tuple[FusedNorm, ...] = ()
        self._add_rms_norm = add_rms_norm

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model's own layer, which model code may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_replaced"][0], name)

    @classmethod
    @torch.inference_mode()
    def of(cls, layer: Any) -> Self | None:
        """A replacement for `layer`; None if it is no such layer, or there is no routine."""
        if any(type(getattr(layer, name, None)) is not kind for name, kind in _PARTS.items()):
            return None
        weight = layer.input_layernorm.weight
        routine = find_routine("add_rms_norm", weight.device, weight.dtype)
        fused = cls(layer, routine) if routine is not None else None
        return fused if fused is not None and _is_equal(layer, fused) else None

    @staticmethod
    def chain(layers: Sequence[nn.Module]) -> None:
        """Have each of `layers`, the children of one module in turn, norm its output for the next one."""
        for layer, after in pairwise(layers):
            if isinstance(layer, FusedResiduals) and isinstance(after, FusedResiduals):
                layer.following = (after.input_layernorm,)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[1, tokens, width] to the same; keys and values of the tokens are stored in the cache."""
        plans = current().metadata.plans
        ahead = plans.pop(_AHEAD, None)
        # Compared by identity: what changes a layer's output in between (images of some models do) makes another.
        if ahead is not None and ahead[0] is hidden_states and ahead[2] is self.input_layernorm:
            normed = ahead[1]
        else:
            normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(hidden_states=normed, **given)
        hidden, normed = self._added(hidden_states, attended, self.post_attention_layernorm)
        gated: Tensor = self.mlp(normed)
        if not self.following:
            return hidden + gated
        output, normed = self._added(hidden, gated, self.following[0])
        plans[_AHEAD] = (output, normed, self.following[0])
        return output

    def _added(self, rows: Tensor, added: Tensor, norm: FusedNorm) -> tuple[Tensor, Tensor]:
        summed: tuple[Tensor, Tensor] = self._add_rms_norm(
            rows.contiguous(), added.contiguous(), norm.weight, norm.epsilon
        )
        return summed


def _is_equal(layer: Any, fused: FusedResiduals) -> bool:
    """Whether both give the same output for three sequences of one token."""
    try:
        return alike(_probe(layer, layer), _probe(fused, layer))
    except Exception:  # a foreign layer may raise anything if it needs other arguments
        return False


def _probe(called: Any, layer: Any) -> Tensor:
    """The output of `called` for fixed random input."""
    draw = torch.Generator().manual_seed(0)
    weight, attention = layer.input_layernorm.weight, layer.self_attn

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(weight.device, weight.dtype)

    zeros = torch.zeros(3, 1, dtype=torch.int64).to(weight.device)
    slots = torch.arange(3).to(weight.device)
    metadata = AttentionMetadata(slots, [1, 1, 1], [1, 1, 1], slots.unsqueeze(1), positions=zeros.squeeze(1))
    # Each token attends to itself alone, in a block of its own.
    metadata.device_starts = torch.arange(4).to(weight.device)
    metadata.device_contexts = torch.ones(3, dtype=torch.int64).to(weight.device)
    with running(Forward(KVCache(3, 1), metadata, best_kernel)):
        output: Tensor = called(
            drawn(1, 3, len(weight)),
            attention_mask=None,
            position_ids=zeros.T,
            position_embeddings=(drawn(1, 3, attention.width), drawn(1, 3, attention.width)),
            past_key_values=None,
            use_cache=False,
        )
    return output
