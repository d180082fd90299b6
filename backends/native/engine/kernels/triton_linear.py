"""Products with weights in 8 bits in Triton, for the rows of decode steps on accelerators.

Strategy: a step of few rows takes as long as its weights take to be read. A program reads the weights of some outputs
in 8 bits, makes numbers of the rows' dtype of them in registers, which is exact, and multiplies; the sums, in float32,
are scaled at the end. The grid depends on the shapes alone, so that a step can be captured in a graph, and no sum is
split, so that its order is always the same.

This module needs Triton: `layers.accelerated` imports it where Triton is installed. With `TRITON_INTERPRET=1` the
kernel runs on the CPU.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

# Not tuned on any hardware yet.
_LEAST = 16  # rows and outputs of a tile; fewer cannot be multiplied at a time
_MOST = 64
_WIDE = 8192  # outputs, of which tiles of 32 are enough to occupy a device


@triton.jit
def _multiply(
    rows,
    levels,
    scales,
    bias,
    product,
    count,
    inputs,
    outputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    # Tiles of rows come first: those that read the same weights run beside each other.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    is_row, is_output = row < count, output < outputs
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for at in range(0, inputs, INPUTS):
        place = at + tl.arange(0, INPUTS)
        is_input = place < inputs
        numbers = tl.load(
            rows + row[:, None] * inputs + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0
        )
        weights = tl.load(
            levels + output[None, :] * inputs + place[:, None], mask=is_output[None, :] & is_input[:, None], other=0
        )
        # "ieee": see `triton_attention`.
        sums += tl.dot(numbers, weights.to(numbers.dtype), input_precision="ieee").to(tl.float32)
    found = sums * tl.load(scales + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        found += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    tl.store(
        product + row[:, None] * outputs + output[None, :],
        found.to(product.dtype.element_ty),
        mask=is_row[:, None] & is_output[None, :],
    )


def multiply_int8(rows: Tensor, levels: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows by a weight in 8 bits.

    Args:
        rows: [rows, inputs], contiguous.
        levels: [outputs, inputs] int8, contiguous.
        scales: [outputs], the factor of each output's levels.
        bias: [outputs], or None.

    Returns:
        [rows, outputs], of the rows' dtype.
    """
    count, inputs = rows.shape
    outputs = len(levels)
    product = rows.new_empty(count, outputs)
    tile = tiles(count, outputs)
    # As bias, if there is none, any tensor serves.
    _multiply[(triton.cdiv(count, tile["ROWS"]), triton.cdiv(outputs, tile["OUTPUTS"]))](
        *(rows, levels, scales, scales if bias is None else bias, product, count, inputs, outputs),
        **tile,
        HAS_BIAS=bias is not None,
        **OPTIONS,
    )
    return product


OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 4}


def tiles(count: int, outputs: int) -> dict[str, int]:
    """How many rows, outputs and inputs a program takes at a time."""
    rows = min(_MOST, max(_LEAST, triton.next_power_of_2(count)))
    if rows > _LEAST:
        return {"ROWS": rows, "OUTPUTS": 32, "INPUTS": 128}
    return {"ROWS": rows, "OUTPUTS": 16 if outputs < _WIDE else 32, "INPUTS": 256}
