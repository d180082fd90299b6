"""top_k and top_p on CPUs, compiled (`src/top_k_top_p.cpp`): the same as `sampling.logits_warpers.mask_top_k_top_p`,
with sums in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Function, function


def mask_top_k_top_p(scores: Tensor, k: Sequence[int], p: Sequence[float]) -> None:
    """Put -inf, in place, for all but each row's `k` highest scores and then for all but the nucleus of mass `p`.

    Only where `is_available`.

    Args:
        scores: [rows, vocabulary] float32, contiguous, on the CPU.
        k: one a row; 0: all.
        p: one a row; 1 or more: all.
    """
    compiled = _function()
    assert compiled is not None, "is_available was not asked"
    # Named, so that both live until the call has returned: ctypes gets their addresses only.
    counts, masses = torch.tensor(k, dtype=torch.int64), torch.tensor(p, dtype=torch.float32)
    compiled(scores.data_ptr(), counts.data_ptr(), masses.data_ptr(), *scores.shape, torch.get_num_threads())


def is_available() -> bool:
    """Whether the kernel was compiled."""
    return _function() is not None


@cache
def _function() -> Function | None:
    return function("top_k_top_p", "mask_top_k_top_p")
