"""Numbers of a few bits in larger integers, and scales that several numbers share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 32  # bits


def unpack(words: Tensor, bits: int, dimension: int, order: Sequence[int] = ()) -> Tensor:
    """Unpack unsigned numbers from 32-bit words, the lowest bits first.

    Args:
        words: int32, of two dimensions.
        bits: of a number; 2, 4 or 8.
        dimension: along which a word holds several numbers.
        order: the place of each of a word's numbers among them, if it is not its own.

    Returns:
        int32, with `dimension` 32 / `bits` times as long.
    """
    count = _WORD // bits
    shifts = torch.arange(count, dtype=torch.int32).mul_(bits)
    # The shift keeps the sign in the upper bits, which the mask removes.
    numbers = words.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(2**bits - 1)
    if order:
        numbers = numbers[..., torch.tensor(order).argsort()]
    if dimension == 0:
        return numbers.permute(0, 2, 1).flatten(0, 1)
    return numbers.flatten(1, 2)


def spread(scales: Tensor, shape: Sequence[int], block: Sequence[int] | None = None) -> Tensor:
    """Repeat scales so that each number of a matrix has its own; of one row or column where that is enough.

    Args:
        scales: one for the matrix, or one for each block of rows and columns.
        shape: of the matrix.
        block: rows and columns of a block; by default as many as divide `shape` among the scales.
    """
    if scales.numel() == 1:
        return scales.reshape(1, 1)
    scales = scales.reshape(len(scales), -1)
    for dimension, size in enumerate(shape):
        count = scales.shape[dimension]
        if count not in (1, size):
            length = block[dimension] if block is not None else -(-size // count)
            # The last block of a dimension may be cut.
            scales = scales.repeat_interleave(length, dimension).narrow(dimension, 0, size)
    return scales
