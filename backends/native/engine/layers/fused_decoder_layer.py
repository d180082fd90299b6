"""A whole layer of a decode step on CPUs in one compiled call: its norms, products, attention and gate by one set of
threads, which are gathered once a layer and not for each.

Only for layers whose parts were all joined (`fused_layers`) and whose weights `few_rows` can read, and only in steps
that are the next tokens of not too many sequences; others go through the layer's parts as before. Whether it may take
a layer's place is seen as it is of parts: by what it says beside the layer.
"""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.attention.cpu_decode import MAX_WIDTH, decoding_of, paged_kernel
from backends.native.engine.attention.interface import AttentionMetadata, Forward, current, running
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.progress import progressed
from backends.native.engine.kernels.gemv import MAX_ROWS
from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers.fused_attention import FusedAttention, angles
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fused_norm import FusedNorm
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.packed_linear import PackedLinear

_PARTS = {
    "input_layernorm": FusedNorm,
    "self_attn": FusedAttention,
    "post_attention_layernorm": FusedNorm,
    "mlp": FusedMLP,
}
_LAYER = {
    "norm qkv qkv_bias query_norm key_norm out out_bias": ctypes.c_void_p,
    "second_norm gate_up gate_up_bias down down_bias": ctypes.c_void_p,
    "width heads key_heads head_width inner window gelu": ctypes.c_long,
    "epsilon second_epsilon head_epsilon scale": ctypes.c_float,
}


class _Layer(ctypes.Structure):
    """What the compiled call is told of a layer, as `Layer` below."""

    _fields_ = tuple((name, kind) for names, kind in _LAYER.items() for name in names.split())  # type: ignore[misc]


class FusedDecoderLayer(nn.Module):
    """Takes the place of a decoder layer, which goes on with the steps that this one cannot do.

    Args:
        layer: the model's own, its parts joined and packed.
        compute: the compiled call.
    """

    def __init__(self, layer: Any, compute: Function) -> None:
        super().__init__()
        self.layer = layer
        self._compute = compute
        self._told = _told(layer)
        attention, inner = layer.self_attn, layer.mlp.down_proj.in_features
        self._index: int = attention.layer
        dtype = layer.input_layernorm.weight.dtype
        self._like = torch.empty(1, attention.key_heads, attention.width, dtype=dtype)  # a token's keys, or values
        joined = max(attention.qkv_proj.out_features, 2 * inner)
        self._scratch = len(layer.input_layernorm.weight) + joined + attention.o_proj.in_features + inner

    def __getattr__(self, name: str) -> Any:
        """Of the layer, what models look at."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    @classmethod
    @torch.inference_mode()
    def of(cls, layer: Any) -> Self | None:
        """In place of `layer`; None if it is something else, or nothing can be compiled."""
        if any(type(getattr(layer, name, None)) is not kind for name, kind in _PARTS.items()):
            return None
        attention, mlp = layer.self_attn, layer.mlp
        linears = [getattr(attention, "qkv_proj", None), attention.o_proj]
        linears += [getattr(mlp, "gate_up_proj", None), mlp.down_proj]
        if any(type(linear) is not PackedLinear or linear.skinny_gemm is None for linear in linears):
            return None
        compute = typed_function("fused_decoder_layer", "decoder_layer", layer.input_layernorm.weight.dtype)
        if compute is None or not attention.params.is_plain or attention.width > MAX_WIDTH:
            return None
        whole = cls(layer, compute)
        return whole if _agree(layer, whole) else None

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[1, tokens, width] to the same."""
        forward = current()
        if not self._takes(hidden_states, forward):
            output: Tensor = self.layer(hidden_states, **given)
            return output
        progressed()
        hidden, metadata = hidden_states.clone(memory_format=torch.contiguous_format), forward.metadata
        layer = forward.cache.layer(self._index, self._like, self._like)
        decoding = decoding_of(metadata)
        rows, width = hidden.shape[1], self._like.shape[2]
        cosines, sines = angles(given["position_embeddings"], rows, width, hidden.dtype)
        self._compute(
            ctypes.addressof(self._told),
            hidden.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            metadata.slots.data_ptr(),
            layer.keys.data_ptr(),
            layer.values.data_ptr(),
            decoding.tokens.data_ptr(),
            decoding.tables.data_ptr(),
            decoding.contexts.data_ptr(),
            self._room(metadata, rows).data_ptr(),
            (ctypes.c_long * 5)(
                rows, cosines.shape[-1], decoding.tables.shape[1], forward.cache.block_size, torch.get_num_threads()
            ),
        )
        return hidden

    def _takes(self, hidden: Tensor, forward: Forward) -> bool:
        few = 0 < hidden.shape[1] <= MAX_ROWS and hidden.dtype == self._like.dtype
        return few and forward.kernel is paged_kernel and decoding_of(forward.metadata).alone

    def _room(self, metadata: AttentionMetadata, rows: int) -> Tensor:
        """For what is between a layer's parts; all layers of a step use the same."""
        room: Tensor | None = metadata.plans.get("room")
        if room is None or len(room) < rows * self._scratch:
            room = metadata.plans["room"] = torch.empty(rows * self._scratch, dtype=self._like.dtype)
        return room


def _told(layer: Any) -> _Layer:
    attention, mlp, norm, second = layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm
    return _Layer(
        norm=norm.weight.data_ptr(),
        second_norm=second.weight.data_ptr(),
        epsilon=norm.epsilon,
        second_epsilon=second.epsilon,
        width=len(norm.weight),
        heads=attention.heads,
        key_heads=attention.key_heads,
        head_width=attention.width,
        window=attention.params.sliding_window or 0,
        scale=attention.params.scale,
        query_norm=attention.norm_addresses[0],
        key_norm=attention.norm_addresses[1],
        head_epsilon=attention.epsilon,
        inner=mlp.down_proj.in_features,
        gelu=mlp.activation == "gelu",
        **_linear("qkv", attention.qkv_proj),
        **_linear("out", attention.o_proj),
        **_linear("gate_up", mlp.gate_up_proj),
        **_linear("down", mlp.down_proj),
    )


def _linear(name: str, linear: Any) -> dict[str, int | None]:
    bias = linear.bias
    return {name: linear.skinny_gemm.address, f"{name}_bias": None if bias is None else bias.data_ptr()}


def _agree(layer: Any, whole: FusedDecoderLayer) -> bool:
    """Whether both say the same of three sequences' next tokens, and store the same."""
    try:
        expected = _ask(layer, whole)
    except Exception:  # a foreign layer may raise anything if it wants to be given more
        return False
    return all(alike(own, found) for own, found in zip(expected, _ask(whole, whole), strict=True))


def _ask(asked: Any, whole: FusedDecoderLayer) -> tuple[Tensor, Tensor, Tensor]:
    """What `asked` says, and the keys and values that there are then."""
    draw = torch.Generator().manual_seed(0)
    like, attention = whole._like, whole.layer.self_attn  # noqa: SLF001
    hidden = torch.randn(1, 3, attention.qkv_proj.in_features, generator=draw).to(like.dtype)
    turns = torch.rand(1, 3, attention.width // 2, generator=draw).mul(6.3).repeat(1, 1, 2)
    cache = KVCache(4, 4)
    stored = cache.layer(attention.layer, like, like)
    for pool in (stored.keys, stored.values):
        pool.copy_(torch.randn(pool.shape, generator=draw))
    tables = torch.tensor([[2, 3], [1, 0], [0, 0]])
    metadata = AttentionMetadata(torch.tensor([14, 6, 0]), [1, 1, 1], [7, 3, 1], tables)
    with running(Forward(cache, metadata, paged_kernel)):
        output = asked(
            hidden,
            attention_mask=None,
            position_ids=torch.tensor([[6, 2, 0]]),
            position_embeddings=(turns.cos().to(like.dtype), turns.sin().to(like.dtype)),
            past_key_values=None,
            use_cache=False,
        )
    return output, stored.keys, stored.values
