"""The paged KV cache: one pool of keys and one of values per layer, addressed by slot.

A slot is `block * block_size + offset` and holds one token. The block pool (`scheduling.block_pool`) decides which
sequence owns which block. Layers may differ in heads and widths, and keys from values (MLA), so each layer's pools are
made when its first keys arrive.

In 8 bits, each key and each value of a head has a scale, its largest number: the error of a number is at most 1/254 of
that. What is stored once is never rounded again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LayerKey = int | tuple[int, int]
"""A layer's index, or (index, call) of a module that is called more than once in a forward pass."""


_LEVELS = 127  # of an int8, in each direction


@dataclass(slots=True, eq=False)
class LayerCache:
    """One layer's pools: [slots, key/value heads, width] each.

    In 8 bits they hold int8, and `key_scales` and `value_scales` [slots, heads] the factors, float32.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def in_8_bits(self) -> bool:
        """Whether the numbers must be multiplied by their scales."""
        return self.key_scales is not None

    @property
    def scales(self) -> tuple[Tensor, Tensor] | None:
        """Those of keys and values; None: they are not in 8 bits."""
        keys, values = self.key_scales, self.value_scales
        return None if keys is None or values is None else (keys, values)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [tokens, heads, width] at `slots` [tokens]."""
        _write(self.keys, self.key_scales, slots, keys)
        _write(self.values, self.value_scales, slots, values)

    def select_keys(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """The keys at `slots` [tokens]: [tokens, heads, width] of `dtype`."""
        return _select(self.keys, self.key_scales, slots, dtype)

    def select_values(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """The values, likewise."""
        return _select(self.values, self.value_scales, slots, dtype)


def _write(pool: Tensor, scales: Tensor | None, slots: Tensor, rows: Tensor) -> None:
    if scales is None:
        pool.index_copy_(0, slots, rows)
        return
    rows = rows.float()
    scale = rows.abs().amax(-1) / _LEVELS
    # A row of zeros has any scale.
    exact = rows / scale.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    pool.index_copy_(0, slots, exact.round().to(torch.int8))
    scales.index_copy_(0, slots, scale)


def _select(pool: Tensor, scales: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    rows = pool.index_select(0, slots)
    return rows if scales is None else (rows * scales.index_select(0, slots).unsqueeze(-1)).to(dtype)


class KVCache:
    """`blocks` pages of `block_size` tokens in every layer, in the model's dtype or `in_8_bits`.

    Behind them are `spare_blocks` that no sequence has.
    """

    def __init__(self, blocks: int, block_size: int, spare_blocks: int = 0, *, in_8_bits: bool = False) -> None:
        self.blocks = blocks
        self.spare_blocks = spare_blocks
        self.block_size = block_size
        self.in_8_bits = in_8_bits
        self._layers: dict[LayerKey, LayerCache] = {}

    def layer(self, key: LayerKey, keys: Tensor, values: Tensor) -> LayerCache:
        """The pools of layer `key`; the first call makes them to fit `keys` and `values` [tokens, heads, width]."""
        found = self._layers.get(key)
        if found is None:
            scales = (self._scales(keys), self._scales(values)) if self.in_8_bits else ()
            found = self._layers[key] = LayerCache(self._pool(keys), self._pool(values), *scales)
        return found

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, over all layers that have pools."""
        return sum(pool[: self.block_size].numel() * pool.element_size() for pool in self._pools())

    def pages(self) -> list[Tensor]:
        """Every pool, [blocks with the spare ones, bytes of a block in it] uint8, in place."""
        blocks = self.blocks + self.spare_blocks
        pools = [pool.flatten(1).view(torch.uint8) for pool in self._pools()]  # [slots, bytes]
        return [pool.view(blocks, self.block_size * pool.shape[1]) for pool in pools]

    def resized(self, blocks: int) -> KVCache:
        """An empty cache with pools for the same layers and another number of blocks."""
        cache = KVCache(blocks, self.block_size, self.spare_blocks, in_8_bits=self.in_8_bits)
        for key, layer in self._layers.items():
            # Only their shape, dtype and device are used.
            cache.layer(key, layer.keys, layer.values)
        return cache

    def _pools(self) -> list[Tensor]:
        return [
            pool
            for layer in self._layers.values()
            for pool in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            if pool is not None
        ]

    def _pool(self, like: Tensor) -> Tensor:
        # Not zeroed: a sequence's slots are written before they are read. Zeroing would touch every page of a memory
        # that may never be used.
        dtype = torch.int8 if self.in_8_bits else like.dtype
        return torch.empty((self._slots, *like.shape[1:]), dtype=dtype, device=like.device)

    def _scales(self, like: Tensor) -> Tensor:
        return torch.empty((self._slots, like.shape[1]), dtype=torch.float32, device=like.device)

    @property
    def _slots(self) -> int:
        return (self.blocks + self.spare_blocks) * self.block_size
