"""Whole decoder layers as one compiled call on CPUs, for steps of up to 64 tokens.

Strategy: for few tokens, waking threads for each of a layer's norms, products, attention and gate takes longer than
some of them do, and Python takes a tenth of a step. The compiled code (`src/fused_decoder_layer.cpp`) wakes the threads
once for several layers. A decoder layer is replaced if all its parts were replaced by ours (`fuse_model`), its linear
layers are in blocks or packed in the order of the skinny GEMM, and it gives the same output and the same cache as its
parts one after the other. Steps that hold long prompts, or more than 64 tokens, or run under another attention kernel
go through the layer's parts.

Model code calls layer after layer. The first of several computes them all; each of the others returns what was computed
for it if it is called with what the first one assumed, the output of the layer before it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.attention.cpu_decode import MAX_WIDTH, decode_batch
from backends.native.engine.attention.interface import AttentionMetadata, Forward, current, running
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.progress import report_progress
from backends.native.engine.attention.registry import CPU_PAGED, best_kernel, find_kernel
from backends.native.engine.kernels.block_product import ROOM
from backends.native.engine.kernels.gemv import MAX_ROWS
from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers.block_linear import BlockLinear
from backends.native.engine.layers.fused_attention import FusedAttention, rotary_tables
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fused_norm import FusedNorm
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.packed_linear import PackedLinear
from backends.native.engine.layers.quantized_linear import QuantizedLinear

_PARTS = {
    "input_layernorm": FusedNorm,
    "self_attn": FusedAttention,
    "post_attention_layernorm": FusedNorm,
    "mlp": FusedMLP,
}
_MOST_LAYERS = 8
"""Of one call. Progress is reported between calls only."""


class _Linear(ctypes.Structure):
    """A linear layer: `Linear` of `src/fused_decoder_layer.cpp`."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("parts", ctypes.c_long))


# In the order of the C struct: 4 structs, 5 pointers, 7 longs, 4 floats. Each group is aligned as C aligns it.
_LAYER = {
    "qkv out gate_up down": _Linear,
    "norm second_norm query_norm key_norm multiply_blocks": ctypes.c_void_p,
    "width heads key_heads head_width inner window gelu": ctypes.c_long,
    "epsilon second_epsilon head_epsilon scale": ctypes.c_float,
}


class _Layer(ctypes.Structure):
    """A layer's weights and sizes: `Layer` of `src/fused_decoder_layer.cpp`."""

    _fields_ = tuple((name, kind) for names, kind in _LAYER.items() for name in names.split())


class _Step(ctypes.Structure):
    """What is the same for all layers of a step: `Step` of `src/fused_decoder_layer.cpp`."""

    _fields_ = (
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("contexts", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("room", ctypes.c_void_p),
        ("rows", ctypes.c_long),
        ("rotated", ctypes.c_long),
        ("table", ctypes.c_long),
        ("page", ctypes.c_long),
        ("threads", ctypes.c_long),
    )


@dataclass(slots=True, eq=False)
class _StepPlan:
    """The arguments of a step for layers of one kind, and the tensors that the addresses in them point into.

    Attributes:
        step: addresses and sizes.
        rotary: the model's cosines and sines; layers with other ones have a plan of their own.
        memory: the tensors, which must live as long as `step`.
    """

    step: _Step
    rotary: Any
    memory: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class _Ahead:
    """What another layer's call computed for a layer; under that layer in `AttentionMetadata.plans`.

    Attributes:
        first: the layer that made the call.
        hidden: the input that was assumed.
        rotary: the cosines and sines, likewise.
        output: [1, tokens, width].
    """

    first: FusedDecoderLayer
    hidden: Tensor
    rotary: Any
    output: Tensor


class FusedDecoderLayer(nn.Module):
    """Replaces a decoder layer, and calls it for the steps that the compiled code does not take.

    Args:
        layer: the model's own, its parts fused and its linear layers packed.
        compute: the compiled code.

    Attributes:
        index: among the layers of the cache.
        following: the layers after it that its call computes, too.
        kind: equal for layers that one call can compute.
    """

    def __init__(self, layer: Any, compute: Function) -> None:
        super().__init__()
        self.layer = layer
        self._compute = compute
        # Addresses only. `self.layer` keeps the weights alive, and nothing may replace them after this.
        self._description = _describe(layer, few=False)
        quantized = [linear for linear in _linears(layer).values() if isinstance(linear, QuantizedLinear)]
        # Of quantized layers, steps of few rows multiply other weights.
        self._few = _describe(layer, few=True) if quantized else self._description
        self._most_of_few = max((linear.most_rows for linear in quantized), default=0)
        attention, inner = layer.self_attn, layer.mlp.down.in_features
        self.index: int = attention.layer
        dtype = layer.input_layernorm.weight.dtype
        self._like = torch.empty(1, attention.key_heads, attention.width, dtype=dtype)  # one token's keys, or values
        # Scratch numbers a row, as the compiled code lays them out: normed, then the larger of both joined projections,
        # which are never needed together, then attended, then gated.
        joined = max(attention.qkv_proj.out_features, 2 * inner)
        widest = max(len(layer.input_layernorm.weight), attention.o_proj.in_features, inner)
        self._scratch_width = len(layer.input_layernorm.weight) + joined + attention.o_proj.in_features + inner
        self._room_width = int(widest * ROOM)  # for weights in blocks
        self.following: tuple[FusedDecoderLayer, ...] = ()
        self.kind = (self._scratch_width, self._room_width, attention.width, dtype, self._most_of_few)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model's own layer, which model code may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    @classmethod
    @torch.inference_mode()
    def of(cls, layer: Any) -> Self | None:
        """A replacement for `layer`; None if it is no such layer, or nothing was compiled."""
        if any(type(getattr(layer, name, None)) is not kind for name, kind in _PARTS.items()):
            return None
        attention = layer.self_attn
        # Layers that LoRA keeps separate end here, and quantized ones where nothing was compiled for them.
        if not all(_is_compiled(linear) for linear in _linears(layer).values()):
            return None
        weight = layer.input_layernorm.weight
        if find_kernel(weight.device, weight.dtype, attention.params) is not CPU_PAGED or attention.width > MAX_WIDTH:
            return None
        # The compiled code is given cosines and sines.
        if attention.rotary_emb is not None:
            return None
        compute = typed_function("fused_decoder_layer", "decoder_layers", weight.dtype)
        fused = cls(layer, compute) if compute is not None else None
        return fused if fused is not None and _is_equal(layer, fused) else None

    @staticmethod
    def chain(layers: Sequence[nn.Module]) -> None:
        """Have one of up to 8 of `layers`, the children of one module in turn, compute those that follow it, too."""
        for kind, group in groupby(layers, lambda layer: layer.kind if isinstance(layer, FusedDecoderLayer) else None):
            run: list[Any] = list(group) if kind is not None else []
            for at in range(0, len(run), _MOST_LAYERS):
                run[at].following = tuple(run[at + 1 : at + _MOST_LAYERS])

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[1, tokens, width] to the same; keys and values of the tokens are stored in the cache."""
        forward = current()
        ahead: _Ahead | None = forward.metadata.plans.pop(self, None)
        if ahead is not None:
            # By identity: what changes a layer's output in between (images of some models do) makes another.
            if ahead.hidden is hidden_states and ahead.rotary is given["position_embeddings"]:
                return ahead.output
            ahead.first.following = ()  # in other steps it would be in vain, too
        if not self._takes(hidden_states, forward):
            output: Tensor = self.layer(hidden_states, **given)
            return output
        return self._call(hidden_states, given["position_embeddings"], forward)

    def _call(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None, forward: Forward) -> Tensor:
        """The layer's output; the outputs of `following` are left for them."""
        report_progress()
        layers = (self, *self.following)
        rows = hidden.contiguous()
        step = self._step(forward, rotary, rows)
        pools = [forward.cache.layer(each.index, self._like, self._like) for each in layers]
        # A layer does not change its input: model code may keep it (`output_hidden_states`).
        outputs = rows.new_empty(len(layers), *rows.shape)
        self._compute(
            _pointers([each.address(step.rows) for each in layers]),
            len(layers),
            ctypes.addressof(step),
            rows.data_ptr(),
            outputs.data_ptr(),
            _pointers([pool.keys.data_ptr() for pool in pools]),
            _pointers([pool.values.data_ptr() for pool in pools]),
        )
        output, *others = outputs.unbind()
        assumed = output
        for each, computed in zip(self.following, others, strict=True):
            forward.metadata.plans[each] = _Ahead(self, assumed, rotary, computed)
            assumed = computed
        return output

    def address(self, rows: int) -> int:
        """The address of the layer's weights and sizes for steps of so many rows."""
        return ctypes.addressof(self._few if rows <= self._most_of_few else self._description)

    def _takes(self, hidden: Tensor, forward: Forward) -> bool:
        # Checked at every call: the same layer serves prompts. Under another kernel than `best_kernel` (a test's, or
        # the probe of a load) the parts must call that one.
        few = 0 < hidden.shape[1] <= MAX_ROWS and hidden.dtype == self._like.dtype and not forward.cache.in_8_bits
        return few and forward.kernel is best_kernel and not decode_batch(forward.metadata).prompts

    def _step(self, forward: Forward, rotary: tuple[Tensor, Tensor] | None, hidden: Tensor) -> _Step:
        """The step as the compiled code is given it: made for the first layer, and again for layers of another kind."""
        # `plans` lives as long as the step's metadata. A plan keeps `rotary` alive, so no other has its identity.
        metadata = forward.metadata
        key = ("decoder_layer", id(rotary), self.kind)
        plan: _StepPlan | None = metadata.plans.get(key)
        if plan is None:
            plan = metadata.plans[key] = self._plan(forward, rotary, hidden)
        return plan.step

    def _plan(self, forward: Forward, rotary: tuple[Tensor, Tensor] | None, hidden: Tensor) -> _StepPlan:
        metadata, batch, rows = forward.metadata, decode_batch(forward.metadata), hidden.shape[1]
        cosines, sines = rotary_tables(rotary, rows, self._like.shape[2], hidden)
        # For what one part of a layer hands to the next: layers run one after the other.
        scratch, room = hidden.new_empty(rows * self._scratch_width), torch.empty(rows * self._room_width)
        memory = (cosines, sines, metadata.slots, batch.tokens, batch.tables, batch.contexts, scratch, room)
        sizes = (cosines.shape[-1], batch.tables.shape[1], forward.cache.block_size, torch.get_num_threads())
        return _StepPlan(_Step(*(each.data_ptr() for each in memory), rows, *sizes), rotary, memory)


def _pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)


def _linears(layer: Any) -> dict[str, Any]:
    """The linear layers by their names in `_Layer`; None is one that is not joined."""
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "qkv": getattr(attention, "qkv_proj", None),
        "out": attention.o_proj,
        "gate_up": getattr(mlp, "gate_up_proj", None),
        "down": mlp.down,
    }


def _describe(layer: Any, *, few: bool) -> _Layer:
    """The layer as steps of few rows compute it, or of more."""
    attention, mlp, norm, second = layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm
    linears = {name: _chosen(linear, few=few) for name, linear in _linears(layer).items()}
    blocks = [linear.product for linear in linears.values() if isinstance(linear, BlockLinear)]
    return _Layer(
        **{name: _linear(linear) for name, linear in linears.items()},
        multiply_blocks=blocks[0].in_team if blocks else None,
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
        inner=mlp.down.in_features,
        gelu=mlp.activation == "gelu",
    )


def _chosen(linear: Any, *, few: bool) -> Any:
    """What multiplies few rows, or more: of a quantized layer a part."""
    if type(linear) is QuantizedLinear:
        return linear.few if few and linear.few is not None else linear.many
    return linear


def _is_compiled(linear: Any) -> bool:
    """Whether the compiled code can multiply with a linear layer's weight: it is packed or in blocks, or both."""
    if type(linear) is QuantizedLinear and linear.few is None:
        return False
    packed = _chosen(linear, few=False)
    return type(packed) is BlockLinear or (type(packed) is PackedLinear and packed.skinny_gemm is not None)


def _linear(linear: PackedLinear | BlockLinear) -> _Linear:
    bias = None if linear.bias is None else linear.bias.data_ptr()
    if isinstance(linear, BlockLinear):
        return _Linear(linear.product.address, bias, len(linear.product.parts))
    assert linear.skinny_gemm is not None  # `_is_compiled`
    return _Linear(linear.skinny_gemm.address, bias, 0)


def _is_equal(layer: Any, fused: FusedDecoderLayer) -> bool:
    """Whether both give the same output and store the same keys and values, for three sequences in decode."""
    try:
        expected = _probe(layer, fused)
    except Exception:  # a foreign layer may raise anything if it needs other arguments
        return False
    return all(alike(own, found) for own, found in zip(expected, _probe(fused, fused), strict=True))


def _probe(called: Any, fused: FusedDecoderLayer) -> tuple[Tensor, Tensor, Tensor]:
    """The output of `called` for fixed random input, and all keys and values of the cache after the call."""
    draw = torch.Generator().manual_seed(0)
    like, attention = fused._like, fused.layer.self_attn  # noqa: SLF001
    hidden = torch.randn(1, 3, attention.qkv_proj.in_features, generator=draw).to(like.dtype)
    angles = torch.rand(1, 3, attention.width // 2, generator=draw).mul(6.3).repeat(1, 1, 2)
    # A cache of random content, and sequences of 7, 3 and 1 tokens on shuffled blocks: the new token of each goes to
    # its own slot (14 = block 3, offset 2; 6 = block 1, offset 2; 0).
    cache = KVCache(4, 4)
    stored = cache.layer(attention.layer, like, like)
    for pool in (stored.keys, stored.values):
        pool.copy_(torch.randn(pool.shape, generator=draw))
    tables = torch.tensor([[2, 3], [1, 0], [0, 0]])
    metadata = AttentionMetadata(torch.tensor([14, 6, 0]), [1, 1, 1], [7, 3, 1], tables)
    with running(Forward(cache, metadata, best_kernel)):
        output = called(
            hidden,
            attention_mask=None,
            position_ids=torch.tensor([[6, 2, 0]]),
            position_embeddings=(angles.cos().to(like.dtype), angles.sin().to(like.dtype)),
            past_key_values=None,
            use_cache=False,
        )
    return output, stored.keys, stored.values
