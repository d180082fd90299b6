"""The attention kernel for CPUs: sequences in decode by compiled code that reads pages where they lie.

Strategy: `reference` gathers pages first and pads sequences to one length, which on a CPU takes longer than attention
itself. The compiled code (`src/paged_decode.h`) follows the block tables instead. A step is split in two: the tokens of
sequences in decode, of verified drafts and of short prompts go to that code together, each with the keys that it sees;
long prompts go to `cpu_prefill`, or to `reference` where that cannot take them. `reference` also takes steps of shapes
that the compiled code does not know.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.cpu_prefill import attend_prompts
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import fill, reference_kernel
from backends.native.engine.devices import index_tensor
from backends.native.engine.kernels.jit import Function, typed_function

MAX_WIDTH = 512
"""The widest key or value that the compiled code takes; MAX_WIDTH of `src/paged_decode.h`."""
_DTYPES = (torch.float32, torch.bfloat16)
_SHORT = 1024
"""New tokens times context up to which a sequence of several new tokens is attended to token by token."""


@dataclass(slots=True, eq=False, frozen=True)
class DecodeBatch:
    """The tokens of a step that are attended to one by one: those of sequences in decode, and of short prompts.

    Attributes:
        tokens: [tokens] int64, where they stand in the pack.
        tables: [tokens, blocks] int64, the pages of their sequences.
        contexts: [tokens] int64, the tokens of their sequences up to each of them.
        prompts: the indices of the step's other sequences.
    """

    tokens: Tensor
    tables: Tensor
    contexts: Tensor
    prompts: tuple[int, ...] = ()


def supports(device: torch.device, dtype: torch.dtype, params: AttentionParams) -> bool:
    """Whether the compiled code attends so: on a CPU, queries in float32 or bfloat16, without softcap or sinks."""
    return device.type == "cpu" and dtype in _DTYPES and params.is_plain and _function(dtype) is not None


def paged_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """Implements `interface.Kernel` for what it `supports`."""
    # Checked at every call and not at load: strides and dtypes belong to the tensors of this call.
    attend = _function(queries.dtype, in_8_bits=cache.in_8_bits) if _fits(queries, cache) else None
    if attend is None:
        return reference_kernel(queries, cache, block_size, metadata, params)
    batch = decode_batch(metadata)
    output = queries.new_empty(*queries.shape[:2], cache.values.shape[2])
    _decode(attend, queries, cache, block_size, batch, params, output)
    # Each part writes its own rows of `output`: the batch above, long prompts here by one of two ways.
    # The compiled code for prompts is causal.
    if batch.prompts and (
        metadata.last_keys or not attend_prompts(queries, cache, block_size, metadata, params, output, batch.prompts)
    ):
        fill(output, queries, cache, block_size, metadata, params, batch.prompts)
    return output


def decode_batch(metadata: AttentionMetadata) -> DecodeBatch:
    """The step's, found in its first layer and kept for the others."""
    found: DecodeBatch | None = metadata.plans.get("decode_batch")
    if found is None:
        found = metadata.plans["decode_batch"] = find_decode_batch(metadata)
    return found


def find_decode_batch(metadata: AttentionMetadata) -> DecodeBatch:
    """The tokens that are attended to one by one, by the step's metadata."""
    tables, counts = metadata.block_tables, metadata.query_lengths
    device = tables.device
    # Steady decode: the step's own tensors serve without being indexed.
    if max(counts) == 1:
        return DecodeBatch(
            index_tensor(metadata.starts, device), tables, index_tensor(metadata.context_lengths, device)
        )
    tokens: list[int] = []
    rows: list[int] = []
    contexts: list[int] = []
    prompts: list[int] = []
    lengths = zip(metadata.starts, counts, metadata.context_lengths, strict=True)
    for row, (start, new, context) in enumerate(lengths):
        if new > 1 and (new * context > _SHORT or row in metadata.last_keys):
            prompts.append(row)
            continue
        tokens += range(start, start + new)
        rows += [row] * new
        contexts += range(context - new + 1, context + 1)
    return DecodeBatch(
        index_tensor(tokens, device), tables[index_tensor(rows, device)], index_tensor(contexts, device), tuple(prompts)
    )


def _fits(queries: Tensor, cache: LayerCache) -> bool:
    """Whether the tensors are as the compiled code reads them; it checks nothing."""
    return (
        (cache.in_8_bits or queries.dtype == cache.keys.dtype)
        # Only the innermost numbers must be adjacent; the strides of tokens and heads are passed on, so a slice of a
        # joined projection needs no copy.
        and queries.stride(2) == 1
        and max(queries.shape[2], cache.values.shape[2]) <= MAX_WIDTH
    )


def _decode(
    attend: Function,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    batch: DecodeBatch,
    params: AttentionParams,
    output: Tensor,
) -> None:
    """Write to `output` at the tokens of `batch`."""
    keys, values = cache.keys, cache.values
    attend(
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        *(None if scales is None else scales.data_ptr() for scales in (cache.key_scales, cache.value_scales)),
        output.data_ptr(),
        batch.tokens.data_ptr(),
        batch.tables.data_ptr(),
        batch.contexts.data_ptr(),
        # `paged_decode::Sizes` of `src/paged_decode.h`, field by field: one pointer, since ctypes converts each
        # separate argument at every call.
        (ctypes.c_long * 11)(
            len(batch.tokens),
            batch.tables.shape[1],
            block_size,
            # 0: no window.
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
def _function(dtype: torch.dtype, *, in_8_bits: bool = False) -> Function | None:
    """For queries of `dtype` and pages of the same, or in 8 bits."""
    return typed_function("cpu_decode", "paged_decode_8_bits" if in_8_bits else "paged_decode", dtype)
