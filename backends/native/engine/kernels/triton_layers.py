"""What stands between a decoder layer's products, in Triton: norms, rotary embeddings and gates, one kernel each.

The same operations as the C++ of `src/rms_norm.h`, `src/rotary.h` and `src/gated_activation.h`: computed in float32 and
rounded where transformers' modules round. Rows of a step are independent, so a program takes one row, one head or one
stretch of a row, and the grid depends on the number of rows alone.

This module needs Triton: `layers.accelerated` imports it where Triton is installed. With `TRITON_INTERPRET=1` the
kernels run on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Not tuned on any hardware yet.
_STRETCH = 1024
"""Numbers of a row that a program of the gate takes."""
_NUMBERS_A_WARP = 512
_MOST_WARPS = 16


@triton.jit
def _norm_rows(rows, added, sums, weight, normed, width, epsilon, WIDTH_PADDED: tl.constexpr, ADDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, WIDTH_PADDED)
    mask = dim < width
    numbers = tl.load(rows + row * width + dim, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        numbers += tl.load(added + row * width + dim, mask=mask, other=0.0).to(tl.float32)
        # Rounded before it is normed, as the sum that a module hands on is.
        total = numbers.to(sums.dtype.element_ty)
        tl.store(sums + row * width + dim, total, mask=mask)
        numbers = total.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / width + epsilon)
    scaled = (numbers * factor).to(normed.dtype.element_ty).to(tl.float32)
    weights = tl.load(weight + dim, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + row * width + dim, (weights * scaled).to(normed.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(numbers, query_norm, key_norm, head, at, mask, factor, like, HEADS: tl.constexpr):
    """Numbers of a head times the factor of its norm and the norm's weight, rounded in between."""
    # Both are read, and one is taken: a program knows its head only when it runs.
    of_queries = tl.load(query_norm + at, mask=mask, other=0.0).to(tl.float32)
    of_keys = tl.load(key_norm + at, mask=mask, other=0.0).to(tl.float32)
    weights = tl.where(head < HEADS, of_queries, of_keys)
    return (weights * (numbers * factor).to(like.dtype.element_ty).to(tl.float32)).to(like.dtype.element_ty)


@triton.jit
def _rotate_and_store(
    joined,
    cosines,
    sines,
    query_norm,
    key_norm,
    slots,
    keys,
    values,
    epsilon,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    NORMED: tl.constexpr,
):
    HALF: tl.constexpr = ROTATED // 2
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = joined + (token * (HEADS + 2 * KEY_HEADS) + head) * WIDTH
    dim = tl.arange(0, HALF_PADDED)
    is_half = dim < HALF
    rest = ROTATED + tl.arange(0, REST_PADDED)
    is_rest = rest < WIDTH
    first = tl.load(own + dim, mask=is_half, other=0.0)
    second = tl.load(own + HALF + dim, mask=is_half, other=0.0)
    others = tl.load(own + rest, mask=is_rest, other=0.0)
    if NORMED:
        a, b, c = first.to(tl.float32), second.to(tl.float32), others.to(tl.float32)
        squares = tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)
        factor = 1.0 / tl.sqrt(squares / WIDTH + epsilon)
        first = _scaled(a, query_norm, key_norm, head, dim, is_half, factor, joined, HEADS)
        second = _scaled(b, query_norm, key_norm, head, HALF + dim, is_half, factor, joined, HEADS)
        others = _scaled(c, query_norm, key_norm, head, rest, is_rest, factor, joined, HEADS)
    cosine, sine = cosines + token * ROTATED, sines + token * ROTATED
    a, b = first.to(tl.float32), second.to(tl.float32)
    cos_a = tl.load(cosine + dim, mask=is_half, other=0.0).to(tl.float32)
    cos_b = tl.load(cosine + HALF + dim, mask=is_half, other=0.0).to(tl.float32)
    sin_a = tl.load(sine + dim, mask=is_half, other=0.0).to(tl.float32)
    sin_b = tl.load(sine + HALF + dim, mask=is_half, other=0.0).to(tl.float32)
    turned = ((a * cos_a).to(first.dtype).to(tl.float32) - (b * sin_a).to(first.dtype).to(tl.float32)).to(first.dtype)
    second = ((b * cos_b).to(first.dtype).to(tl.float32) + (a * sin_b).to(first.dtype).to(tl.float32)).to(first.dtype)
    if head < HEADS:
        tl.store(own + dim, turned, mask=is_half)
        tl.store(own + HALF + dim, second, mask=is_half)
        tl.store(own + rest, others, mask=is_rest)
    else:
        # Keys go to the cache, and with each its value: nobody reads them in the pack again.
        place = (tl.load(slots + token) * KEY_HEADS + head - HEADS) * WIDTH
        tl.store(keys + place + dim, turned, mask=is_half)
        tl.store(keys + place + HALF + dim, second, mask=is_half)
        tl.store(keys + place + rest, others, mask=is_rest)
        every = tl.arange(0, WIDTH_PADDED)
        value = tl.load(own + KEY_HEADS * WIDTH + every, mask=every < WIDTH, other=0.0)
        tl.store(values + place + every, value, mask=every < WIDTH)


@triton.jit
def _activate_and_multiply(joined, gated, width, STRETCH: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dim = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    mask = dim < width
    gate = tl.load(joined + 2 * row * width + dim, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(joined + (2 * row + 1) * width + dim, mask=mask, other=0.0)
    # GELU by its tanh approximation: (1 + tanh(y)) / 2 is sigmoid(2 y).
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    activated = (gate / (1.0 + tl.exp(-inner))).to(up.dtype)
    tl.store(gated + row * width + dim, (activated.to(tl.float32) * up.to(tl.float32)).to(up.dtype), mask=mask)


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm [..., width] rows, contiguous."""
    normed = torch.empty_like(rows)
    _launch_norm(rows, rows, rows, weight, normed, epsilon, adds=False)
    return normed


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum of [..., width] rows and as many added ones, both contiguous, and the sum's norm."""
    total, normed = torch.empty_like(rows), torch.empty_like(rows)
    _launch_norm(rows, added, total, weight, normed, epsilon, adds=True)
    return total, normed


def rotate_and_store(
    joined: Tensor,
    cosines: Tensor,
    sines: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    epsilon: float,
) -> None:
    """Norm and turn the queries of a pack in place, and store its keys, likewise, and values in the cache.

    Args:
        joined: [tokens, query heads + 2 * key heads, width], contiguous: queries, keys and values.
        cosines: [1, tokens, rotated]; contiguous, of the pack's dtype.
        sines: likewise.
        norms: weights [width] of the norm of queries and of that of keys, or None twice.
        slots: [tokens] int64.
        keys: [slots, key heads, width], contiguous.
        values: likewise.
        heads: of the queries.
        epsilon: of the norms.
    """
    key_heads, width = keys.shape[1:]
    rotated = cosines.shape[-1]
    query_norm, key_norm = norms
    _rotate_and_store[(len(joined), heads + key_heads)](
        joined,
        cosines,
        sines,
        joined if query_norm is None else query_norm,
        joined if key_norm is None else key_norm,
        slots,
        keys,
        values,
        epsilon,
        HEADS=heads,
        KEY_HEADS=key_heads,
        WIDTH=width,
        ROTATED=rotated,
        HALF_PADDED=triton.next_power_of_2(rotated // 2),
        REST_PADDED=triton.next_power_of_2(max(1, width - rotated)),
        WIDTH_PADDED=triton.next_power_of_2(width),
        NORMED=query_norm is not None,
        num_warps=1,
    )


def silu_and_mul(joined: Tensor) -> Tensor:
    """[..., 2 * width], gates before ups, contiguous, to [..., width]."""
    return _gate(joined, gelu=False)


def gelu_and_mul(joined: Tensor) -> Tensor:
    """As `silu_and_mul`, with GELU by its tanh approximation."""
    return _gate(joined, gelu=True)


def _gate(joined: Tensor, *, gelu: bool) -> Tensor:
    width = joined.shape[-1] // 2
    gated = joined.new_empty(*joined.shape[:-1], width)
    rows = gated.numel() // width
    _activate_and_multiply[(rows, triton.cdiv(width, _STRETCH))](joined, gated, width, STRETCH=_STRETCH, GELU=gelu)
    return gated


def _launch_norm(
    rows: Tensor, added: Tensor, total: Tensor, weight: Tensor, normed: Tensor, epsilon: float, *, adds: bool
) -> None:
    width = len(weight)
    padded = triton.next_power_of_2(width)
    warps: Any = min(_MOST_WARPS, max(1, padded // _NUMBERS_A_WARP))
    _norm_rows[(rows.numel() // width,)](
        rows, added, total, weight, normed, width, epsilon, WIDTH_PADDED=padded, ADDS=adds, num_warps=warps
    )
