"""The sampling operations that exist in torch and compiled for CPUs or accelerators, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.native.engine.kernels import gumbel as compiled_gumbel
from backends.native.engine.kernels import top_k_top_p as compiled_top_k_top_p
from backends.native.engine.sampling import accelerated, gumbel, logits_warpers


@dataclass(frozen=True, slots=True)
class SamplingOperations:
    """One implementation. Both operations work in place on scores [rows, vocabulary].

    Attributes:
        name: `compiled`, `triton` or `torch`.
        supports: whether the operations can be called with such scores.
        mask_top_k_top_p: with k and p, one of each a row: see `logits_warpers.mask_top_k_top_p`.
        add_gumbel_noise: with the rows' keys: see `gumbel.add_gumbel_noise`.
    """

    name: str
    supports: Callable[[Tensor], bool]
    mask_top_k_top_p: Callable[[Tensor, Sequence[int], Sequence[float]], None]
    add_gumbel_noise: Callable[[Tensor, Tensor], None]


def _compiled_supports(scores: Tensor) -> bool:
    return (
        scores.device.type == "cpu"
        and scores.dtype == torch.float32
        # The compiled code gets an address and two sizes, and walks rows of `vocabulary` floats.
        and scores.is_contiguous()
        and compiled_top_k_top_p.is_available()
        and compiled_gumbel.is_available()
    )


IMPLEMENTATIONS = (
    SamplingOperations(
        "compiled",
        _compiled_supports,
        compiled_top_k_top_p.mask_top_k_top_p,
        compiled_gumbel.add_gumbel_noise,
    ),
    SamplingOperations("triton", accelerated.supports, accelerated.mask_top_k_top_p, accelerated.add_gumbel_noise),
    SamplingOperations("torch", lambda _: True, logits_warpers.mask_top_k_top_p, gumbel.add_gumbel_noise),
)
"""In order of preference; the last supports everything."""


def operations_for(scores: Tensor) -> SamplingOperations:
    """The first implementation that supports `scores`."""
    return next(operations for operations in IMPLEMENTATIONS if operations.supports(scores))
