"""Attention on CPUs: sequences in decode by a compiled routine that reads their pages where they lie.

`reference` gathers the pages first and pads sequences to one length, which on a CPU takes longer than attending does.
What the compiled routine does not know (softcap, sinks, other dtypes, GPUs) goes on to `reference`, and all of it where
nothing can be compiled. Prompts are attended to by `prompt_attention`, if it can.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.cpu_prefill import attend_prompts
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, index_tensor
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import fill, reference_kernel
from backends.native.engine.kernels.jit import Function, typed_function

MAX_WIDTH = 512
"""The widest key or value that the compiled code takes; MAX_WIDTH of `src/paged_decode.h`."""
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(slots=True, eq=False, frozen=True)
class Decoding:
    """A step's sequences with one new token.

    Attributes:
        tokens: [sequences] int64, where their tokens are in the pack.
        tables: [sequences, blocks] int64, their pages.
        contexts: [sequences] int64, tokens up to now.
        alone: whether the step has no others.
    """

    tokens: Tensor
    tables: Tensor
    contexts: Tensor
    alone: bool


def paged_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """See `attention.Kernel`."""
    attend = _function(cache.keys.dtype) if _takes(queries, cache, params) else None
    if attend is None:
        return reference_kernel(queries, cache, block_size, metadata, params)
    decoding = decoding_of(metadata)
    output = queries.new_empty(*queries.shape[:2], cache.values.shape[2])
    _decode(attend, queries, cache, block_size, decoding, params, output)
    if not decoding.alone and not attend_prompts(queries, cache, block_size, metadata, params, output):
        fill(output, queries, cache, block_size, metadata, params, decoding=False)
    return output


def decoding_of(metadata: AttentionMetadata) -> Decoding:
    """Those of a step, found once."""
    found: Decoding | None = metadata.plans.get("decoding")
    if found is None:
        found = metadata.plans["decoding"] = find_decoding(metadata)
    return found


def find_decoding(metadata: AttentionMetadata) -> Decoding:
    """Those of a step."""
    tables, counts = metadata.block_tables, metadata.query_lengths
    contexts = index_tensor(metadata.context_lengths, tables.device)
    starts = index_tensor(metadata.starts, tables.device)
    if max(counts) == 1:
        return Decoding(starts, tables, contexts, alone=True)
    rows = index_tensor([row for row, count in enumerate(counts) if count == 1], tables.device)
    return Decoding(starts[rows], tables[rows], contexts[rows], alone=False)


def _takes(queries: Tensor, cache: LayerCache, params: AttentionParams) -> bool:
    return (
        queries.device.type == "cpu"
        and queries.dtype == cache.keys.dtype
        and queries.dtype in _DTYPES
        and queries.stride(2) == 1
        and max(queries.shape[2], cache.values.shape[2]) <= MAX_WIDTH
        and params.is_plain
    )


def _decode(
    attend: Function,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    decoding: Decoding,
    params: AttentionParams,
    output: Tensor,
) -> None:
    """Write to `output` at the tokens of sequences in decode."""
    keys, values = cache.keys, cache.values
    attend(
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        decoding.tokens.data_ptr(),
        decoding.tables.data_ptr(),
        decoding.contexts.data_ptr(),
        (ctypes.c_long * 11)(
            len(decoding.tokens),
            decoding.tables.shape[1],
            block_size,
            params.sliding_window or 0,
            queries.shape[1],
            keys.shape[1],
            queries.shape[2],
            values.shape[2],
            queries.stride(0),
            queries.stride(1),
            torch.get_num_threads(),
        ),
        params.scale,
    )


@cache
def _function(dtype: torch.dtype) -> Function | None:
    return typed_function("cpu_decode", "paged_decode", dtype)
