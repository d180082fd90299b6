"""Attention of prompts on CPUs that multiply bfloat16: compiled, over pages where they lie.

torch's own attends in bfloat16 as slowly as in float32. Here keys and values are laid out once a call as `few_rows`
wants its weights, and that routine multiplies: queries by 64 keys, their softmax so far by 64 values, and on. The
softmax is kept in float32. Other dtypes and widths, and what cannot be compiled, are left to `reference`.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.kernels.jit import Function, function

_BLOCK = 64  # keys, and numbers of a value, that lie together
_MAX_WIDTH = 512  # of keys and values; MAX_WIDTH of `src/cpu_prefill.cpp`


def attend_prompts(
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    metadata: AttentionMetadata,
    params: AttentionParams,
    output: Tensor,
) -> bool:
    """Write what `attention.Kernel` gives to `output`, for sequences of several new tokens; False if it cannot.

    Softcap and sinks are not looked at.
    """
    attend = _function() if _takes(queries, cache) else None
    if attend is None:
        return False
    lengths = zip(metadata.starts, metadata.query_lengths, metadata.context_lengths, strict=True)
    for row, (start, new, context) in enumerate(lengths):
        if new > 1:
            own, table = slice(start, start + new), metadata.block_tables[row]
            _attend(attend, queries[own], cache, block_size, table, context, params, output[own])
    return True


def _attend(
    attend: Function,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    table: Tensor,
    context: int,
    params: AttentionParams,
    output: Tensor,
) -> None:
    """For one sequence: `queries` and `output` are its own, and `table` [blocks] its pages."""
    new, heads, width = queries.shape
    key_heads = cache.keys.shape[1]
    packed = cache.keys.new_empty(2, key_heads, -(-context // _BLOCK), _BLOCK * width)
    attend(
        queries.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        table.data_ptr(),
        packed.data_ptr(),
        output.data_ptr(),
        (ctypes.c_long * 10)(
            new,
            context,
            block_size,
            params.sliding_window or 0,
            heads,
            key_heads,
            width,
            queries.stride(0),
            queries.stride(1),
            torch.get_num_threads(),
        ),
        params.scale,
    )


def _takes(queries: Tensor, cache: LayerCache) -> bool:
    width = queries.shape[2]
    return (
        queries.device.type == "cpu"
        and queries.dtype == cache.keys.dtype == torch.bfloat16
        and width == cache.values.shape[2] <= _MAX_WIDTH
        and width % _BLOCK == 0
        and queries.stride(2) == 1
        and queries.stride(0) % 2 == queries.stride(1) % 2 == queries.data_ptr() % 4 == 0  # pairs are read
    )


@cache
def _function() -> Function | None:
    """The compiled attention; None, too, where the CPU does not multiply bfloat16: there torch's own is faster."""
    has_dot = function("cpu_prefill", "has_bfloat16_dot")
    return function("cpu_prefill", "paged_prefill_bfloat16") if has_dot is not None and has_dot() else None
