"""Noise on accelerators: Triton's (`kernels.triton_sampling`), where it proves right on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.acceptance import report_unused, why_not_used
from backends.native.engine.sampling import gumbel

TOLERANCE = 1e-5
"""How far noise may be from torch's, relative to the largest: its logarithms differ in the last bits."""


def supports(scores: Tensor) -> bool:
    """Whether Triton's noise can be added to scores: on an accelerator on which it proved right."""
    on_accelerator = scores.device.type not in ("cpu", "meta")
    return on_accelerator and scores.dtype == torch.float32 and scores.stride(-1) == 1 and is_right(scores.device)


def add_gumbel_noise(scores: Tensor, keys: Tensor) -> None:
    """As `gumbel.add_gumbel_noise`."""
    _routine()(scores, keys)


# The result False is kept, too: one check and one line of the log a process.
@cache
def is_right(device: torch.device) -> bool:
    """Whether Triton gives torch's noise on the device."""
    why = why_not(device)
    if why is not None:
        report_unused("triton_sampling", device, torch.float32, why)
    return why is None


def why_not(device: torch.device) -> str | None:
    """Why Triton's noise cannot be used on the device; None: it can."""
    return why_not_used(lambda: _error(device), TOLERANCE)


@torch.inference_mode()
def _error(device: torch.device) -> float:
    keys = gumbel.keys_on(device, gumbel.row_keys([1, 2**64 - 1], [0, 70_000]))
    found, expected = (torch.zeros(2, 3000).to(device) for _ in range(2))
    _routine()(found, keys)
    gumbel.add_gumbel_noise(expected, keys)
    return float((found - expected).abs().max() / expected.abs().max())


def _routine() -> Callable[[Tensor, Tensor], None]:
    from backends.native.engine.kernels.triton_sampling import add_gumbel_noise as routine

    return routine
