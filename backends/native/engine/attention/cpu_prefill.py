"""Attention of prompts on CPUs that multiply bfloat16, by compiled code over pages where they lie.

Strategy: torch's own attention takes as long in bfloat16 as in float32. The compiled code (`src/cpu_prefill.cpp`) packs
a sequence's keys and values once a call into the order that the skinny GEMM reads, and uses that GEMM twice for each 64
keys: queries by keys, and the online softmax's weights by values. The softmax is in float32. Other dtypes and widths,
and CPUs without bfloat16 products, are left to `reference`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.kernels.jit import Function, function

_BLOCK = 64  # keys, and numbers of a value, that are packed together; BLOCK of `src/gemm.h`
_MAX_WIDTH = 512  # of a key or a value; MAX_WIDTH of `src/cpu_prefill.cpp`


def attend_prompts(
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    metadata: AttentionMetadata,
    params: AttentionParams,
    output: Tensor,
    prompts: Sequence[int],
) -> bool:
    """Write attention's result to `output` for the sequences whose indices are in `prompts`; False if it cannot.

    Softcap and sinks are not applied: callers check `params.is_plain`.
    """
    attend = _function() if _fits(queries, cache) else None
    if attend is None:
        return False
    starts = metadata.starts
    for row in prompts:
        own = slice(starts[row], starts[row] + metadata.query_lengths[row])
        table, context = metadata.block_tables[row], metadata.context_lengths[row]
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
    """Attend for one sequence: `queries` and `output` are its rows, `table` [blocks] its pages."""
    new, heads, width = queries.shape
    key_heads = cache.keys.shape[1]
    # Scratch memory: [0] for packed keys, [1] for packed values, each rounded up to whole blocks of 64 tokens.
    packed = cache.keys.new_empty(2, key_heads, -(-context // _BLOCK), _BLOCK * width)
    attend(
        queries.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        table.data_ptr(),
        packed.data_ptr(),
        output.data_ptr(),
        # `Sizes` of `src/cpu_prefill.cpp`, field by field.
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


def _fits(queries: Tensor, cache: LayerCache) -> bool:
    """Whether the tensors are as the compiled code reads them; it checks nothing."""
    width = queries.shape[2]
    return (
        queries.device.type == "cpu"
        and queries.dtype == cache.keys.dtype == torch.bfloat16
        and width == cache.values.shape[2] <= _MAX_WIDTH
        and width % _BLOCK == 0
        and queries.stride(2) == 1
        and queries.stride(0) % 2 == queries.stride(1) % 2 == queries.data_ptr() % 4 == 0  # numbers are read in pairs
    )


@cache
def _function() -> Function | None:
    """The compiled attention; None, too, where the CPU does not multiply bfloat16: there torch's own is faster."""
    has_dot = function("cpu_prefill", "has_bfloat16_dot")
    return function("cpu_prefill", "paged_prefill_bfloat16") if has_dot is not None and has_dot() else None
