"""The paged cache: pools by layer, slots, and bytes."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.attention.kv_cache import KVCache

pytestmark = pytest.mark.torch

SIZE = 4


def test_a_cache_counts_its_bytes_and_can_be_made_again_larger() -> None:
    small = KVCache(1, SIZE)
    small.layer(0, torch.zeros(1, 2, 8), torch.zeros(1, 2, 6))
    small.layer(5, torch.zeros(1, 1, 4, dtype=torch.bfloat16), torch.zeros(1, 1, 4, dtype=torch.bfloat16))
    assert small.bytes_per_block == SIZE * (2 * (8 + 6) * 4 + (4 + 4) * 2)
    large = small.resized(7)
    assert large.bytes_per_block == small.bytes_per_block
    assert large.layer(5, torch.empty(0), torch.empty(0)).keys.shape == (7 * SIZE, 1, 4)


def test_keys_and_values_are_written_to_their_slots_and_no_others() -> None:
    layer = KVCache(2, SIZE).layer(0, torch.zeros(1, 2, 8), torch.zeros(1, 2, 6))
    for pool in (layer.keys, layer.values):
        pool.zero_()
    keys, values = torch.randn(3, 2, 8), torch.randn(3, 2, 6)
    slots = torch.tensor([6, 0, 3])
    layer.write(slots, keys, values)
    assert torch.equal(layer.keys[slots], keys)
    assert torch.equal(layer.values[slots], values)
    assert not layer.keys[[1, 2, 4, 5, 7]].any()


def test_in_8_bits_each_head_of_a_token_has_its_scale() -> None:
    cache = KVCache(2, SIZE, in_8_bits=True)
    layer = cache.layer(0, torch.zeros(1, 2, 8), torch.zeros(1, 2, 6))
    assert cache.bytes_per_block == SIZE * 2 * (8 + 4 + 6 + 4)
    keys = torch.randn(3, 2, 8) * torch.tensor([1e-6, 1.0, 1e6]).view(3, 1, 1)
    values = torch.randn(3, 2, 6, dtype=torch.bfloat16)
    keys[1, 1], slots = 0, torch.tensor([6, 0, 3])
    layer.write(slots, keys, values)
    found = layer.select_keys(slots, torch.float32)
    # Half a step of 1/127 of the largest number of the head.
    assert ((found - keys).abs() <= keys.abs().amax(-1, keepdim=True) / 254 * 1.001).all()
    rounded = layer.select_values(slots, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - values.float()).abs().max() <= float(values.abs().max()) / 64
    # What was read and stored again does not change.
    layer.write(slots, found, rounded)
    torch.testing.assert_close(layer.select_keys(slots, torch.float32), found, atol=0, rtol=1e-6)
    assert cache.resized(5).bytes_per_block == cache.bytes_per_block


def test_a_layer_keeps_its_pools() -> None:
    cache, like = KVCache(2, SIZE), torch.zeros(1, 2, 8)
    assert cache.layer(3, like, like) is cache.layer(3, like, like)
    assert cache.layer(4, like, like) is not cache.layer(3, like, like)
