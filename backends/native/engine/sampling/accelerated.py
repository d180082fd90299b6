"""Sampling on accelerators: Triton's noise, top_k and top_p (`kernels.triton_sampling`), where they prove right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.devices import constant
from backends.native.engine.kernels.acceptance import report_unused, why_not_used
from backends.native.engine.sampling import gumbel, logits_warpers

TOLERANCE = 1e-5
"""How far noise may be from torch's, relative to the largest: its logarithms differ in the last bits."""


def supports(scores: Tensor) -> bool:
    """Whether Triton samples from scores: on an accelerator on which it proved right."""
    on_accelerator = scores.device.type not in ("cpu", "meta")
    return on_accelerator and scores.dtype == torch.float32 and scores.stride(-1) == 1 and is_right(scores.device)


def add_gumbel_noise(scores: Tensor, keys: Tensor) -> None:
    """As `gumbel.add_gumbel_noise`."""
    _routine("add_gumbel_noise")(scores, keys)


def mask_top_k_top_p(scores: Tensor, k: Sequence[int], p: Sequence[float]) -> None:
    """As `logits_warpers.mask_top_k_top_p`; the sums are of float32."""
    if any(count > 0 for count in k) or any(mass < 1 for mass in p):
        device = scores.device
        _routine("mask_top_k_top_p")(scores, constant(device, "q", tuple(k)), constant(device, "f", tuple(p)))


# The result False is kept, too: one check and one line of the log a process.
@cache
def is_right(device: torch.device) -> bool:
    """Whether Triton samples as torch does on the device."""
    why = why_not(device)
    if why is not None:
        report_unused("triton_sampling", device, torch.float32, why)
    return why is None


def why_not(device: torch.device) -> str | None:
    """Why Triton cannot be used for sampling on the device; None: it can."""
    return why_not_used(lambda: max(_error_of_noise(device), _error_of_mask(device)), TOLERANCE)


@torch.inference_mode()
def _error_of_noise(device: torch.device) -> float:
    keys = gumbel.keys_on(device, gumbel.row_keys([1, 2**64 - 1], [0, 70_000]))
    found, expected = (torch.zeros(2, 3000).to(device) for _ in range(2))
    add_gumbel_noise(found, keys)
    gumbel.add_gumbel_noise(expected, keys)
    return float((found - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def _error_of_mask(device: torch.device) -> float:
    """The share of tokens that only one of the two keeps."""
    k, p = [0, 40, 0, 400], [1.0, 1.0, 0.9, 0.5]
    scores = torch.randn(len(k), 3000, generator=torch.Generator().manual_seed(0)) * 3
    found, expected = scores.to(device, copy=True), scores.to(device, copy=True)
    mask_top_k_top_p(found, k, p)
    logits_warpers.mask_top_k_top_p(expected, k, p)
    return float((found != expected).float().mean())


def _routine(name: str) -> Callable[..., None]:
    from backends.native.engine.kernels import triton_sampling

    routine: Callable[..., None] = getattr(triton_sampling, name)
    return routine
