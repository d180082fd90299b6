"""How far an attention kernel is from the reference on a device: for the check before its use, and for `doctor`."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, Kernel
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.devices import index_tensor

_PAGE = 16
_HEADS, _KEY_HEADS, _WIDTH = 6, 2, 64
_SCALE = _WIDTH**-0.5
# New tokens and contexts of the sequences of each case: decode, and a prompt beside a decode.
_CASES = (([1, 1], [1, 70]), ([20, 1], [40, 50]))


@torch.inference_mode()
def error_of(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, *, plain: bool = True, in_8_bits: bool = False
) -> float:
    """The largest difference from the reference in float32, relative to its largest number.

    Args:
        kernel: the kernel.
        device: where it runs.
        dtype: of queries, keys and values.
        plain: without a sliding window, a softcap and sinks; otherwise with all three, and once with chunks and ALiBi.
        in_8_bits: how keys and values are stored.
    """
    heads = torch.randn(_HEADS, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    kinds = [AttentionParams(_SCALE)]
    if not plain:
        kinds = [AttentionParams(_SCALE, 24, 5.0, heads), AttentionParams(_SCALE, alibi=heads.abs(), chunk=24)]
    return max(
        _error(kernel, device, dtype, *lengths, params=params, in_8_bits=in_8_bits)
        for lengths in _CASES
        for params in kinds
    )


def _error(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    counts: list[int],
    contexts: list[int],
    *,
    params: AttentionParams,
    in_8_bits: bool,
) -> float:
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    width = -(-max(contexts) // _PAGE)
    # Shuffled: with blocks in order, a kernel that ignored the block tables could be right by chance.
    tables = torch.randperm(len(contexts) * width, generator=draw).view(len(contexts), width).to(device)
    pools = [drawn(tables.numel() * _PAGE, _KEY_HEADS, _WIDTH) for _ in range(2)]
    cache, exact = LayerCache(*pools), LayerCache(*(pool.float() for pool in pools))
    if in_8_bits:
        cache = exact = KVCache(tables.numel(), _PAGE, in_8_bits=True).layer(0, *pools)
        cache.write(torch.arange(len(pools[0])).to(device), *pools)
    metadata = AttentionMetadata(torch.empty(0), counts, contexts, tables)
    metadata.device_starts = index_tensor([*metadata.starts, sum(counts)], device)
    metadata.device_contexts = index_tensor(contexts, device)
    queries = drawn(sum(counts), _HEADS, _WIDTH)
    found = kernel(queries, cache, _PAGE, metadata, params).float()
    metadata.plans.clear()
    expected = reference_kernel(queries.float(), exact, _PAGE, metadata, params)
    return float((found - expected).abs().max() / expected.abs().max())
