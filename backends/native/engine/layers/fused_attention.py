"""Attention modules: one product for queries, keys and values, and one compiled pass that applies norms and
rotary embeddings and stores keys and values in the cache.

Between a module's projections and its attention function, the compiled pass (`src/rotary.h`, `triton_layers`) knows
norms of the heads (Qwen3) and rotary embeddings over halves, and nothing else. A module that computes anything else
there calls the attention function with other queries or stores other keys, which `_probe` sees; such a module stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from backends.native.engine.attention.interface import (
    AttentionMetadata,
    AttentionParams,
    Forward,
    chunk_of,
    current,
    running,
)
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.progress import report_progress
from backends.native.engine.layers.comparison import Routine
from backends.native.engine.layers.fusion import Projections, alike, is_linear, place_of
from backends.native.engine.layers.routines import find_routine

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_NORMS = ("q_norm", "k_norm")


class FusedAttention(Projections):
    """Replaces an attention module whose attention function is ours.

    Args:
        module: the model's own.
        rotate_and_store: the compiled pass.
        params: the parameters with which the model's own calls the attention function.
        join: whether its linear layers may be joined.
    """

    def __init__(self, module: Any, rotate_and_store: Routine, params: AttentionParams, *, join: bool) -> None:
        super().__init__({name: getattr(module, name) for name in _PROJECTIONS}, "qkv_proj" if join else "")
        self.o_proj = module.o_proj
        self.layer: int = module.layer_idx
        self.width: int = module.head_dim
        self.heads: int = module.q_proj.out_features // module.head_dim
        self.key_heads: int = module.k_proj.out_features // module.head_dim
        self.params = params
        # What makes its cosines and sines; None: they are given.
        self.rotary_emb = getattr(module, "rotary_emb", None)
        # Both or none: `_is_made_of_heads` has refused other modules.
        norms = [getattr(module, name, None) for name in _NORMS]
        query_norm, key_norm = (None if norm is None else norm.weight for norm in norms)
        self.norm_weights: tuple[Tensor | None, Tensor | None] = (query_norm, key_norm)
        self.epsilon: float = 0.0 if norms[0] is None else norms[0].variance_epsilon
        self._rotate_and_store = rotate_and_store

    @classmethod
    def of(cls, module: Any, longest: int, *, join: bool = True) -> Self | None:
        """A replacement for `module`; None if it is no such attention, or nothing was compiled.

        Args:
            module: any module of a model whose attention implementation is ours.
            longest: the most tokens of a sequence.
            join: whether its linear layers may be joined.
        """
        if not _is_made_of_heads(module) or chunk_of(module) is not None:
            return None
        compiled = find_routine("rotate_and_store", *place_of(module.q_proj))
        if compiled is None:
            return None
        try:
            # The module's own call is the expectation. It also yields the parameters (scale, window, softcap) that the
            # module gives to the attention function, so that they need not be read from configurations.
            call = _probe(module, module, longest)
            fused = cls(module, compiled, call.params, join=join)
            return fused if call.equals(_probe(fused, module, longest)) else None
        except Exception:  # a foreign module may raise anything if it is another kind of attention
            return None

    @property
    def norm_addresses(self) -> list[int | None]:
        """Addresses of the weights of the queries' and the keys' norm; None where there is no norm."""
        return [None if weight is None else weight.data_ptr() for weight in self.norm_weights]

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """[1, tokens, width] to the same, and None for the attention weights, which are never made."""
        report_progress()
        forward = current()
        if self.rotary_emb is not None:
            position_embeddings = self.rotary_emb(hidden_states, position_ids)
        joined = self.project(hidden_states)[0]
        # Views into the joined projection: queries, then keys, then values, in the order of `_PROJECTIONS`.
        heads = joined.view(len(joined), -1, self.width)
        queries, keys = heads[:, : self.heads], heads[:, self.heads : self.heads + self.key_heads]
        # Keys twice: values have the same shape here. Only shape, dtype and device are read.
        layer = forward.cache.layer(self.layer, keys, keys)
        cosines, sines = rotary_tables(position_embeddings, len(joined), self.width, joined)
        # In place, hence before the kernel: `queries` is a view of what this call rotates, and keys and values must be
        # in the cache.
        # The routine does not round: keys and values of a cache in 8 bits are written apart, and then rounded.
        written, places = layer, forward.metadata.slots
        if layer.in_8_bits:
            written = LayerCache(*(joined.new_empty(len(joined), self.key_heads, self.width) for _ in range(2)))
            places = torch.arange(len(joined), device=joined.device)
        pools = (written.keys, written.values)
        self._rotate_and_store(heads, cosines, sines, self.norm_weights, places, *pools, self.heads, self.epsilon)
        if layer.in_8_bits:
            layer.write(forward.metadata.slots, *pools)
        attended = forward.kernel(queries, layer, forward.cache.block_size, forward.metadata, self.params)
        return self.o_proj(attended.view(1, len(joined), -1)), None


def rotary_tables(given: tuple[Tensor, Tensor] | None, rows: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines as the compiled passes read them: [1, rows, at most `width`], contiguous.

    Args:
        given: the model's; None, as Granite 4 without rotary embeddings has it: nothing is rotated.
        rows: tokens of the step.
        width: of a head.
        like: has the dtype and the device of the result.

    Raises:
        ValueError: they have another shape.
    """
    if given is None:
        none = like.new_empty(1, rows, 0)
        return none, none
    cosines, sines = (part.to(like.dtype).contiguous() for part in given)
    rotated = cosines.shape[-1]
    # The compiled code checks nothing: a table of another shape would be read out of bounds.
    if rotated > width or not cosines.numel() == sines.numel() == rows * rotated:
        raise ValueError(f"rotary embeddings of shape {list(cosines.shape)} for {rows} tokens of width {width}")
    return cosines, sines


@dataclass(slots=True, eq=False)
class _AttentionCall:
    """What a module gave to the attention function, what it stored, and what it made of the function's output."""

    queries: Tensor
    cache: LayerCache
    params: AttentionParams
    output: Tensor

    def equals(self, other: _AttentionCall) -> bool:
        """Whether both calls are the same but for roundings."""
        mine, theirs = ((each.queries, each.cache.keys, each.cache.values, each.output) for each in (self, other))
        return all(alike(expected, found) for expected, found in zip(mine, theirs, strict=True))


@torch.inference_mode()
def _probe(called: Any, module: Any, longest: int) -> _AttentionCall:
    """The attention call that `called`, which is `module` or its replacement, makes for three tokens.

    Their positions are the first, the middle and the last, so that a factor for far tokens shows. One row is ordinary,
    one so large that a clamp shows, and one so small that a norm's epsilon counts.
    """
    draw = torch.Generator().manual_seed(0)
    (device, dtype), width = place_of(module.q_proj), module.head_dim
    # 1e3: OLMo's `clip_qkv` would show. 1e-3: the mean square is then close to usual epsilons (1e-6).
    hidden = torch.randn(1, 3, module.q_proj.in_features, generator=draw) * torch.tensor([[[1.0], [1e3], [1e-3]]])
    # Random angles up to 2 pi, the same in both halves: the convention of `rotate_half`. A module that pairs neighbours
    # instead (GPT-J, GLM) gives other queries.
    angles = torch.rand(1, 3, width // 2, generator=draw).mul(6.3).repeat(1, 1, 2)
    # The kernel returns fixed numbers, so both modules' outputs compare their output projections alone.
    attended = torch.randn(3, module.q_proj.out_features // width, width, generator=draw).to(device, dtype)
    calls: list[_AttentionCall] = []

    def kernel(
        queries: Tensor,
        cache: LayerCache,
        block_size: int,  # noqa: ARG001 - parameters of `Kernel`
        metadata: AttentionMetadata,  # noqa: ARG001
        params: AttentionParams,
    ) -> Tensor:
        calls.append(_AttentionCall(queries.clone(), cache, params, attended))
        return attended

    # Three sequences of one token, in slots 0, 1 and 2 of a cache of one block.
    tables = torch.zeros(3, 1, dtype=torch.int64).to(device)
    metadata = AttentionMetadata(torch.arange(3).to(device), [1, 1, 1], [1, 1, 1], tables)
    positions = torch.tensor([[0, longest // 2, longest - 1]]).to(device)
    with running(Forward(KVCache(1, 3), metadata, kernel)):
        # All arguments that decoder layers of transformers pass; modules take what they know and ignore the rest.
        output, _ = called(
            hidden_states=hidden.to(device, dtype),
            position_embeddings=(angles.cos().to(device, dtype), angles.sin().to(device, dtype)),
            attention_mask=None,
            position_ids=positions,
            cache_position=positions[0],
            past_key_values=None,
            use_cache=False,
        )
    calls[0].output = output
    return calls[0]


def _is_made_of_heads(module: Any) -> bool:
    """Whether the module has the parts, and the parts the widths, that the compiled pass reads without checks."""
    linears = [getattr(module, name, None) for name in _PROJECTIONS]
    width = getattr(module, "head_dim", None)
    if not all(is_linear(linear) for linear in linears) or not isinstance(width, int):
        return False
    if not hasattr(module, "layer_idx") or not hasattr(module, "o_proj"):
        return False
    queries, keys, values = (getattr(module, name).out_features for name in _PROJECTIONS)
    # Equal widths of keys and values, and whole heads; MLA and the like have others.
    if width % 2 or queries % width or keys % width or keys != values:
        return False
    norms = [getattr(module, name, None) for name in _NORMS]
    return norms == [None, None] or all(_is_head_norm(norm, module, norms[0]) for norm in norms)


def _is_head_norm(norm: Any, module: Any, like: Any) -> bool:
    """Whether `norm` has a weight for one head and the epsilon of `like`."""
    weight, epsilon = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    same = epsilon is not None and epsilon == getattr(like, "variance_epsilon", None)
    return (
        same
        and weight is not None
        and weight.shape == (module.head_dim,)
        and (weight.device, weight.dtype) == place_of(module.q_proj)
    )
