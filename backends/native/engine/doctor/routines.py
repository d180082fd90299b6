"""Each routine of the engine against torch's: attention and layers in each dtype, and what sampling does."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from msgspec import Struct
from torch import Tensor

from backends.native.engine.attention import accelerated
from backends.native.engine.attention.comparison import error_of
from backends.native.engine.attention.interface import AttentionParams
from backends.native.engine.attention.registry import CPU_PAGED, KERNELS, REFERENCE, TRITON_PAGED
from backends.native.engine.kernels.acceptance import TOLERANCES
from backends.native.engine.layers import accelerated as accelerated_layers
from backends.native.engine.layers.comparison import error_of as error_of_layers
from backends.native.engine.sampling.gumbel import perturb
from backends.native.engine.sampling.logits_warpers import mask_top_k_top_p
from backends.native.engine.sampling.operations import operations_for

_ROWS, _VOCABULARY = 4, 4096
_NOISE_TOLERANCE = 1e-4


class Routine(Struct, frozen=True):
    """A routine and how far it is from torch's.

    Attributes:
        name: of the routine.
        dtype: of its numbers.
        used: whether the engine uses it here; torch's is used otherwise.
        error: the largest difference, relative to the largest number; None: it was not compared.
        allowed: the largest error that is not a fault.
        why: why it is not used.
    """

    name: str
    dtype: str
    used: bool
    error: float | None
    allowed: float
    why: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the engine uses it and should not."""
        # `not <=`: NaN is wrong, too.
        return self.used and self.error is not None and not self.error <= self.allowed


def compare(device: torch.device) -> list[Routine]:
    """Compare every routine that is for `device`."""
    return [*_attention(device), *_layers(device), *_sampling(device)]


def _attention(device: torch.device) -> Iterator[Routine]:
    others = {CPU_PAGED.name} if device.type != "cpu" else {TRITON_PAGED.name}
    for kernel in KERNELS:
        if kernel.name in others or kernel is REFERENCE:
            continue
        for dtype, allowed in TOLERANCES.items():
            name = str(dtype).removeprefix("torch.")
            if kernel.supports(device, dtype, AttentionParams(1.0)):
                yield Routine(kernel.name, name, True, error_of(kernel.attend, device, dtype), allowed)
            else:
                why = "it is not for this dtype, or was not compiled"
                if kernel is TRITON_PAGED:
                    why = accelerated.why_not(device, dtype) or "it is not for this device"
                yield Routine(kernel.name, name, False, None, allowed, why)


def _layers(device: torch.device) -> Iterator[Routine]:
    """What stands between a layer's products; on a CPU these are checked in each model that is loaded."""
    for dtype, allowed in TOLERANCES.items() if device.type != "cpu" else ():
        for name in (*accelerated_layers.NAMES, *accelerated_layers.PRODUCTS):
            kind = str(dtype).removeprefix("torch.")
            routine = accelerated_layers.find(name, device, dtype)
            if routine is None:
                why = accelerated_layers.why_not(name, device, dtype) or "it is not for this device"
                yield Routine(name, kind, False, None, allowed, why)
            else:
                yield Routine(name, kind, True, error_of_layers(name, routine, device, dtype), allowed)


def _sampling(device: torch.device) -> Iterator[Routine]:
    """The operations of sampling on the device, against torch's on the CPU."""
    scores = torch.randn(_ROWS, _VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    k, p = [0, 40, 0, 400], [1.0, 1.0, 0.9, 0.5]
    operations = operations_for(scores.to(device))

    expected, found = scores.clone(), scores.to(device, copy=True)
    mask_top_k_top_p(expected, k, p)
    operations.mask_top_k_top_p(found, k, p)
    # The share of tokens that only one of the two keeps.
    differ = float((found.cpu().isfinite() != expected.isfinite()).float().mean())
    yield Routine(f"top_k_top_p ({operations.name})", "float32", True, differ, 0.0)

    zeros = torch.zeros_like(scores)
    seeds, positions = list(range(_ROWS)), list(range(7, 7 + _ROWS))
    noise = perturb(zeros.to(device, copy=True), seeds, positions, operations.add_gumbel_noise)
    error = _relative(noise.cpu(), perturb(zeros, seeds, positions))
    yield Routine(f"gumbel ({operations.name})", "float32", True, error, _NOISE_TOLERANCE)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
