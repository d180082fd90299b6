"""Sampling on accelerators in Triton: Gumbel noise, and top_k with top_p, one kernel each.

The bits of the noise are those of `sampling.gumbel`; logarithms may differ in the last bits. top_k and top_p need no
sort: a program takes a row and finds the lowest score that is kept by its bits, two in each pass over the row. This
module needs Triton: `sampling.accelerated` imports it where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_STRETCH = 1024
"""Scores of a row that a program takes to add noise."""
_TILE = 8192
"""Scores that a program of top_k and top_p takes at a time, at most."""


@triton.jit
def _mix(value):
    # MurmurHash3's 32-bit finalizer.
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def _add_noise(scores, keys, count, row_stride, STRETCH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    mask = token < count
    low = tl.load(keys + 2 * row).to(tl.uint32, bitcast=True)
    high = tl.load(keys + 2 * row + 1).to(tl.uint32, bitcast=True)
    bits = _mix(_mix(token.to(tl.uint32) + low) ^ high)
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    # log(1 - u) after Kahan: log(rest) * u / (rest - 1) cancels the rounding of 1 - u for small u.
    rest = 1.0 - uniform
    exact = rest == 1.0
    logs = tl.where(exact, uniform, tl.log(rest) * uniform / tl.where(exact, 1.0, rest - 1.0))
    place = scores + row * row_stride + token
    tl.store(place, tl.load(place, mask=mask, other=0.0) - tl.log(logs), mask=mask)


def add_gumbel_noise(scores: Tensor, keys: Tensor) -> None:
    """Add each row's noise to its scores, in place.

    Args:
        scores: [rows, vocabulary] float32; adjacent numbers in each row.
        keys: [rows, 2] int32, contiguous: the lower and the upper half of each row's key.
    """
    rows, count = scores.shape
    _add_noise[(rows, triton.cdiv(count, _STRETCH))](scores, keys, count, scores.stride(0), STRETCH=_STRETCH)


@triton.jit
def _order(values):
    """int32 in the order of the values."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)  # -0.0 and 0.0 are equal
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _kept_above(own, count, most, total, least, first, second, third, TILE: tl.constexpr, BY_MASS: tl.constexpr):
    """How many scores, or which share of the probability, have at least three orders; of those of `least` or more."""
    one, two, three = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for at in range(0, count, TILE):
        token = at + tl.arange(0, TILE)
        mask = token < count
        values = tl.load(own + token, mask=mask, other=-float("inf"))
        order = _order(values)
        weight = mask.to(tl.float32)
        if BY_MASS:
            weight = tl.exp(values - most) / total
        weight = tl.where(order >= least, weight, 0.0)
        one += tl.where(order >= first, weight, 0.0)
        two += tl.where(order >= second, weight, 0.0)
        three += tl.where(order >= third, weight, 0.0)
    return tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0)


@triton.jit
def _lowest_kept(own, count, most, total, least, wanted, TILE: tl.constexpr, BY_MASS: tl.constexpr):
    """The highest order at which `wanted` scores, or that share of the probability, are reached."""
    found = tl.full([], -(2**31), tl.int64)
    for digit in range(16):
        unit = tl.full([], 1, tl.int64) << (30 - 2 * digit)
        first, second, third = found + unit, found + 2 * unit, found + 3 * unit
        one, two, three = _kept_above(
            own,
            count,
            most,
            total,
            least,
            first.to(tl.int32),
            second.to(tl.int32),
            third.to(tl.int32),
            TILE,
            BY_MASS,
        )
        found = tl.where(three >= wanted, third, tl.where(two >= wanted, second, tl.where(one >= wanted, first, found)))
    return found.to(tl.int32)


@triton.jit
def _mask_row(scores, counts, masses, count, row_stride, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    own = scores + row * row_stride
    k, mass = tl.load(counts + row), tl.load(masses + row)
    least = tl.full([], -(2**31), tl.int32)
    if (k > 0) & (k < count):
        least = _lowest_kept(own, count, 0.0, 1.0, least, k.to(tl.float32), TILE, False)
    if mass < 1:
        highest = tl.full([TILE], -float("inf"), tl.float32)
        for at in range(0, count, TILE):
            token = at + tl.arange(0, TILE)
            highest = tl.maximum(highest, tl.load(own + token, mask=token < count, other=-float("inf")))
        most = tl.max(highest, 0)
        sums = tl.zeros([TILE], tl.float32)
        for at in range(0, count, TILE):
            token = at + tl.arange(0, TILE)
            values = tl.load(own + token, mask=token < count, other=-float("inf"))
            sums += tl.where(_order(values) >= least, tl.exp(values - most), 0.0)
        nucleus = _lowest_kept(own, count, most, tl.sum(sums, 0), least, mass, TILE, True)
        least = tl.maximum(least, nucleus)
    for at in range(0, count, TILE):
        token = at + tl.arange(0, TILE)
        values = tl.load(own + token, mask=token < count, other=0.0)
        # NaN stays, for the sampler to notice.
        drops = (token < count) & (_order(values) < least) & (values == values)
        tl.store(own + token, tl.full([TILE], -float("inf"), tl.float32), mask=drops)


def mask_top_k_top_p(scores: Tensor, counts: Tensor, masses: Tensor) -> None:
    """Put -inf, in place, for all but each row's highest scores and then for all but its nucleus.

    Args:
        scores: [rows, vocabulary] float32; adjacent numbers in each row.
        counts: [rows] int64, how many are kept; 0: all.
        masses: [rows] float32, the probability that the nucleus has; 1 or more: all are kept.
    """
    rows, count = scores.shape
    tile = min(_TILE, triton.next_power_of_2(count))
    warps: Any = max(1, tile // 512)
    _mask_row[(rows,)](scores, counts, masses, count, scores.stride(0), TILE=tile, num_warps=warps)
