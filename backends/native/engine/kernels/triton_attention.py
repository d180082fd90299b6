"""Attention over pages in Triton, for accelerators: one kernel for sequences in decode and for prompts.

Strategy: a program takes one sequence, one key head, a tile of rows (query tokens times the query heads that share the
key head, so that each key is read once for all of them) and one part of the keys, and follows the block table. The grid
depends on the number of sequences and on the longest count of new tokens, never on contexts: lengths are read on the
device, so that a step can be captured in a graph. In decode the keys are split, and a second kernel adds the parts up
(flash decoding). A slot that nobody wrote is never read: loads are masked, and 0 times NaN would be NaN.

This module needs Triton: `attention.accelerated` imports it where Triton is installed. With `TRITON_INTERPRET=1` the
kernels run on the CPU, in float32 and float16 (Triton's interpreter multiplies bfloat16 wrongly).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tuned on an H100 with 32 query and 8 key heads of 128 bfloat16 numbers.
_DECODE_ROWS, _DECODE_KEYS, _DECODE_WARPS = 16, 64, 2
_PROMPT_ROWS, _PROMPT_KEYS, _PROMPT_WARPS = 64, 32, 4
_STAGES = 3
_TILE_BYTES = 2**14
"""Of the keys that a program takes at a time, at most: as many values and the next ones must fit beside them."""
_PROGRAMS = 512
"""Decode splits keys until there are so many programs."""
_MOST_SPLITS = 32


@triton.jit
def _products(
    q, keys, scales, slot, is_key, stride, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, IN_8_BITS: tl.constexpr
):
    """[rows, keys], of queries and the keys of a head in `slot`; `scales` are theirs in 8 bits."""
    dim = tl.arange(0, q.shape[1])
    mask = is_key[None, :] & (dim < WIDTH)[:, None]
    k = tl.load(keys + slot[None, :] * stride + dim[:, None], mask=mask, other=0)
    # "ieee": NVIDIA's default for float32 is TF32, whose error the self-check would take for a fault.
    found = tl.dot(q, k.to(q.dtype), input_precision="ieee").to(tl.float32)
    if IN_8_BITS:
        found = found * tl.load(scales + slot * KEY_HEADS, mask=is_key, other=0.0)[None, :]
    return found


@triton.jit
def _weighted(
    weight,
    sums,
    like,
    values,
    scales,
    slot,
    is_key,
    stride,
    KEY_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    IN_8_BITS: tl.constexpr,
):
    """[rows, width], the sums of the values of a head in `slot` by their weights, as wide as `sums`."""
    dim = tl.arange(0, sums.shape[1])
    mask = is_key[:, None] & (dim < WIDTH)[None, :]
    v = tl.load(values + slot[:, None] * stride + dim[None, :], mask=mask, other=0)
    if IN_8_BITS:
        weight = weight * tl.load(scales + slot * KEY_HEADS, mask=is_key, other=0.0)[None, :]
    return tl.dot(weight.to(like.dtype), v.to(like.dtype), input_precision="ieee").to(tl.float32)


@triton.jit
def _first_key(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first key that a token at a position sees."""
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(first, position - WINDOW + 1)
    if CHUNK > 0:
        first = tl.maximum(first, position // CHUNK * CHUNK)
    return first


@triton.jit
def _with_sinks(most, total, weighted, sinks, head, is_row):
    """The online softmax with one more score a row, which has no value."""
    sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32)
    higher = tl.maximum(most, sink)
    shrink = tl.exp(most - higher)
    return higher, total * shrink + tl.exp(sink - higher), weighted * shrink[:, None]


@triton.jit
def _attend(
    queries,
    keys,
    values,
    output,
    sums,
    tables,
    starts,
    contexts,
    sinks,
    alibi,
    key_scales,
    value_scales,
    scale,
    softcap,
    table_width,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_WIDTH_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    IN_8_BITS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    SHARING: tl.constexpr = HEADS // KEY_HEADS
    sequence, key_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tile, split = part // SPLITS, part % SPLITS
    start = tl.load(starts + sequence)
    new = tl.load(starts + sequence + 1) - start
    context = tl.load(contexts + sequence)
    if tile * ROWS >= new * SHARING:
        return
    row = tile * ROWS + tl.arange(0, ROWS)
    token, head = row // SHARING, key_head * SHARING + row % SHARING
    is_row = token < new
    dim = tl.arange(0, WIDTH_PADDED)
    value_dim = tl.arange(0, VALUE_WIDTH_PADDED)
    q = tl.load(
        queries + (start + token)[:, None] * query_stride + head[:, None] * query_head_stride + dim[None, :],
        mask=is_row[:, None] & (dim < WIDTH)[None, :],
        other=0.0,
    )
    position = context - new + token
    # The keys that some row of the tile sees, and of these the ones of this split.
    end = tl.minimum(context, context - new + (tile * ROWS + ROWS - 1) // SHARING + 1)
    begin = _first_key(context - new + tile * ROWS // SHARING, WINDOW, CHUNK) // KEYS * KEYS
    each = tl.cdiv(tl.cdiv(end - begin, SPLITS), KEYS) * KEYS
    first = begin + split * each
    last = tl.minimum(end, first + each)

    own_keys, own_key_scales = keys + key_head * key_head_stride, key_scales + key_head
    own_values, own_value_scales = values + key_head * value_head_stride, value_scales + key_head
    # Online softmax: the largest score so far, the sum of the weights relative to it, and the weighted values.
    most = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, VALUE_WIDTH_PADDED], tl.float32)
    for at in range(first, last, KEYS):
        key = at + tl.arange(0, KEYS)
        is_key = key < last
        page = tl.load(tables + sequence * table_width + key // PAGE, mask=is_key, other=0)
        slot = page.to(tl.int64) * PAGE + key % PAGE
        score = _products(q, own_keys, own_key_scales, slot, is_key, key_stride, KEY_HEADS, WIDTH, IN_8_BITS) * scale
        if HAS_SOFTCAP:
            score = softcap * (2.0 / (1.0 + tl.exp(-2.0 * score / softcap)) - 1.0)  # tanh
        if HAS_ALIBI:
            score += tl.load(alibi + head, mask=is_row, other=0.0).to(tl.float32)[:, None] * (
                key[None, :] - position[:, None]
            )
        oldest = _first_key(position, WINDOW, CHUNK)
        sees = is_key[None, :] & (key[None, :] <= position[:, None]) & (key[None, :] >= oldest[:, None])
        score = tl.where(sees, score, -float("inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weight, 1)
        weighted = weighted * shrink[:, None]
        weighted += _weighted(
            weight,
            weighted,
            q,
            own_values,
            own_value_scales,
            slot,
            is_key,
            value_stride,
            KEY_HEADS,
            VALUE_WIDTH,
            IN_8_BITS,
        )
        most = higher
    if HAS_SINKS:
        if split == 0:  # it is added once
            most, total, weighted = _with_sinks(most, total, weighted, sinks, head, is_row)

    place = ((start + token) * HEADS + head).to(tl.int64)
    is_number = is_row[:, None] & (value_dim < VALUE_WIDTH)[None, :]
    if SPLITS == 1:
        divisor = tl.where(total > 0, total, 1.0)
        found = (weighted / divisor[:, None]).to(output.dtype.element_ty)
        tl.store(output + place[:, None] * VALUE_WIDTH + value_dim[None, :], found, mask=is_number)
    else:
        place = place * SPLITS + split
        tl.store(output + place[:, None] * VALUE_WIDTH + value_dim[None, :], weighted, mask=is_number)
        tl.store(sums + place * 2, most, mask=is_row)
        tl.store(sums + place * 2 + 1, total, mask=is_row)


@triton.jit
def _combine(
    parts,
    sums,
    output,
    VALUE_WIDTH: tl.constexpr,
    VALUE_WIDTH_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, VALUE_WIDTH_PADDED)
    most = tl.load(sums + (row * SPLITS + split) * 2)
    total = tl.load(sums + (row * SPLITS + split) * 2 + 1)
    # A split without keys has total 0 and counts for nothing.
    weight = tl.where(total > 0, tl.exp(most - tl.max(most, 0)), 0.0)
    part = tl.load(
        parts + (row * SPLITS + split)[:, None] * VALUE_WIDTH + dim[None, :],
        mask=(total > 0)[:, None] & (dim < VALUE_WIDTH)[None, :],
        other=0.0,
    )
    found = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(output + row * VALUE_WIDTH + dim, found.to(output.dtype.element_ty), mask=dim < VALUE_WIDTH)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    starts: Tensor,
    contexts: Tensor,
    sinks: Tensor | None,
    scales: tuple[Tensor, Tensor] | None = None,
    *,
    most_new: int,
    page: int,
    scale: float,
    window: int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    alibi: Tensor | None = None,
    splits: int = 0,
) -> Tensor:
    """Causal attention of packed queries over the pages of their sequences.

    Args:
        queries: [tokens, query heads, width]; only the innermost numbers must be adjacent.
        keys: [slots, key heads, width], likewise.
        values: [slots, key heads, value width], likewise.
        tables: [sequences, blocks], contiguous.
        starts: [sequences + 1], where each sequence's tokens begin in the pack, and their number.
        contexts: [sequences], tokens up to the end of this step.
        sinks: [query heads], or None.
        scales: of keys and values in 8 bits, [slots, key heads] float32 each, contiguous; None: they are no such.
        most_new: the most tokens of one sequence in this step.
        page: tokens of a block.
        scale: the factor of the scores.
        window: how many tokens a token sees, itself included; 0: all.
        chunk: see `AttentionParams`; 0: none.
        softcap: likewise.
        alibi: [query heads], likewise, or None.
        splits: the parts of the keys, a power of two; 0: chosen.

    Returns:
        [tokens, query heads, value width].
    """
    tokens, heads, _ = queries.shape
    key_heads = keys.shape[1]
    sharing, decodes = heads // key_heads, most_new == 1
    splits = splits or (_splits(len(contexts) * key_heads) if decodes else 1)
    tile = tiles(sharing, keys.shape[2] * queries.element_size(), decodes=decodes)
    output = queries.new_empty(tokens, heads, values.shape[2])
    parts: Any = output
    sums: Any = output
    if splits > 1:
        parts = queries.new_empty(tokens, heads, splits, values.shape[2], dtype=torch.float32)
        sums = queries.new_empty(tokens, heads, splits, 2, dtype=torch.float32)
    # Of tensors that a kernel does not read, any serves.
    by_head = (queries if each is None else each for each in (sinks, alibi))
    given = (queries, keys, values, parts, sums, tables, starts, contexts, *by_head)
    strides = (*queries.stride()[:2], *keys.stride()[:2], *values.stride()[:2])
    of_values = _widths("VALUE_WIDTH", values)
    _attend[(len(contexts), key_heads, triton.cdiv(most_new * sharing, tile["ROWS"]) * splits)](
        *(*given, *(scales or (queries, queries)), scale, softcap, tables.shape[1], *strides),
        HEADS=heads,
        KEY_HEADS=key_heads,
        **_widths("WIDTH", keys),
        **of_values,
        PAGE=page,
        **tile,
        num_warps=_DECODE_WARPS if decodes else _PROMPT_WARPS,
        num_stages=_STAGES,
        WINDOW=window,
        CHUNK=chunk,
        HAS_SOFTCAP=softcap > 0,
        HAS_SINKS=sinks is not None,
        HAS_ALIBI=alibi is not None,
        IN_8_BITS=scales is not None,
        SPLITS=splits,
    )
    if splits > 1:
        _combine[(tokens * heads,)](parts, sums, output, **of_values, SPLITS=splits)
    return output


def _widths(name: str, rows: Tensor) -> dict[str, int]:
    """The width of a head, and the one that a tile has."""
    width = rows.shape[2]
    return {name: width, f"{name}_PADDED": max(16, triton.next_power_of_2(width))}


def tiles(sharing: int, width: int, *, decodes: bool) -> dict[str, int]:
    """How many rows and keys a program takes at a time, for `sharing` query heads a key head of `width` bytes."""
    most = max(16, _TILE_BYTES // triton.next_power_of_2(width))
    if decodes:
        return {"ROWS": max(_DECODE_ROWS, triton.next_power_of_2(sharing)), "KEYS": min(most, _DECODE_KEYS)}
    return {"ROWS": _PROMPT_ROWS, "KEYS": min(most, _PROMPT_KEYS)}


def _splits(programs: int) -> int:
    """How often keys are split, by the programs that there are without."""
    wanted = min(_MOST_SPLITS, max(1, _PROGRAMS // programs))
    return 1 << (wanted.bit_length() - 1)
