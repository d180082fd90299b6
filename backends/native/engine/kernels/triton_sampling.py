"""Gumbel noise on accelerators in Triton: one pass over the scores, where torch makes some twenty.

The bits are those of `sampling.gumbel`; logarithms may differ in the last bits. This module needs Triton:
`sampling.accelerated` imports it where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_STRETCH = 1024
"""Scores of a row that a program takes. Not tuned on any hardware yet."""


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
