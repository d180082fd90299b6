"""Gumbel noise on CPUs, compiled (`src/gumbel.cpp`): the same as `sampling.gumbel.add_gumbel_noise` but for the last
bits of logarithms.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Function, function


def add_gumbel_noise(scores: Tensor, low: Tensor, high: Tensor) -> None:
    """Add each row's noise to its scores, in place. Only where `is_available`.

    Args:
        scores: [rows, vocabulary] float32, contiguous, on the CPU.
        low: [rows] int32, the lower halves of the rows' keys.
        high: [rows] int32, the upper halves.
    """
    compiled = _function()
    assert compiled is not None, "is_available was not asked"
    # [rows, 2] int32: a row's key as eight adjacent bytes.
    keys = torch.stack((low, high), dim=1)
    compiled(scores.data_ptr(), keys.data_ptr(), *scores.shape, torch.get_num_threads())


def is_available() -> bool:
    """Whether the kernel was compiled."""
    return _function() is not None


@cache
def _function() -> Function | None:
    return function("gumbel", "add_gumbel_noise")
