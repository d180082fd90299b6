"""Gumbel noise on CPUs, compiled (`src/gumbel.cpp`): the same as `sampling.gumbel.add_gumbel_noise` but for the last
bits of logarithms.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Function, function


def add_gumbel_noise(scores: Tensor, keys: Tensor) -> None:
    """Add each row's noise to its scores, in place. Only where `is_available`.

    Args:
        scores: [rows, vocabulary] float32, contiguous, on the CPU.
        keys: [rows, 2] int32, contiguous: the lower and the upper half of each row's key.
    """
    compiled = _function()
    assert compiled is not None, "is_available was not asked"
    compiled(scores.data_ptr(), keys.data_ptr(), *scores.shape, torch.get_num_threads())


def is_available() -> bool:
    """Whether the kernel was compiled."""
    return _function() is not None


@cache
def _function() -> Function | None:
    return function("gumbel", "add_gumbel_noise")
