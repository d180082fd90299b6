"""The paged KV cache: one pool of keys and one of values per layer, addressed by slot.

A slot is `block * block_size + offset` and holds one token. The block pool (`scheduling.block_pool`) decides which
sequence owns which block. Layers may differ in heads and widths, and keys from values (MLA), so each layer's pools are
made when its first keys arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LayerKey = int | tuple[int, int]
"""A layer's index, or (index, call) of a module that is called more than once in a forward pass."""


@dataclass(slots=True, eq=False)
class LayerCache:
    """One layer's pools: [slots, key/value heads, width] each."""

    keys: Tensor
    values: Tensor

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [tokens, heads, width] at `slots` [tokens]."""
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)


class KVCache:
    """`blocks` pages of `block_size` tokens in every layer."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._layers: dict[LayerKey, LayerCache] = {}

    def layer(self, key: LayerKey, keys: Tensor, values: Tensor) -> LayerCache:
        """The pools of layer `key`; the first call makes them to fit `keys` and `values` [tokens, heads, width]."""
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = LayerCache(self._pool(keys), self._pool(values))
        return found

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, over all layers that have pools."""
        pools = [pool for layer in self._layers.values() for pool in (layer.keys, layer.values)]
        return sum(pool[: self.block_size].numel() * pool.element_size() for pool in pools)

    def resized(self, blocks: int) -> KVCache:
        """An empty cache with pools for the same layers and another number of blocks."""
        cache = KVCache(blocks, self.block_size)
        for key, layer in self._layers.items():
            # Only their shape, dtype and device are used.
            cache.layer(key, layer.keys, layer.values)
        return cache

    def _pool(self, like: Tensor) -> Tensor:
        # Not zeroed: a sequence's slots are written before they are read. Zeroing would touch every page of a memory
        # that may never be used.
        return torch.empty((self.blocks * self.block_size, *like.shape[1:]), dtype=like.dtype, device=like.device)
