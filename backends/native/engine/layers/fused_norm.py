"""RMS norms as one compiled routine (`src/rms_norm.h`, `triton_layers`) instead of seven torch operations.

A norm is replaced if it computes what that routine computes, or, on CPUs, what Gemma's module does: there the weight is
how far a factor is from 1, and a product is rounded once.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.layers.comparison import Routine
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.routines import find_routine


class FusedNorm(nn.Module):
    """Replaces a norm that rounds `x / sqrt(mean(x²) + epsilon)` and multiplies it by its weight."""

    # Attributes of the norm, epsilon first. Llama's RMS norm and its copies, which are most of transformers', have it.
    _NAMES: tuple[str, ...] = ("variance_epsilon",)
    _ROUTINE = "rms_norm"

    def __init__(self, norm: Any, routine: Routine) -> None:
        super().__init__()
        self.norm = norm
        self.weight: Tensor = norm.weight
        self.epsilon: float = getattr(norm, self._NAMES[0])
        self._takes = (norm.weight.dtype, norm.weight.shape[0])
        self._rms_norm = routine

    @classmethod
    @torch.inference_mode()
    def of(cls, module: Any) -> Self | None:
        """A replacement for `module`; None if it is no such norm, or nothing was compiled."""
        weight, epsilon = getattr(module, "weight", None), getattr(module, cls._NAMES[0], None)
        if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
            return None
        if not all(hasattr(module, name) for name in cls._NAMES):
            return None
        # Some take a gate, too (Mamba 2, gated delta nets).
        if len(inspect.signature(module.forward).parameters) != 1:
            return None
        routine = find_routine(cls._ROUTINE, weight.device, weight.dtype)
        fused = cls(module, routine) if routine else None
        return fused if fused and _is_equal(module, fused, weight) else None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        if (rows.dtype, rows.shape[-1]) != self._takes:  # the routine does not check
            normed: Tensor = self.norm(rows)
        else:
            normed = self._rms_norm(rows.contiguous(), self.weight, self.epsilon)
        return normed


class FusedCenteredNorm(FusedNorm):
    """Replaces a norm that multiplies `x / sqrt(mean(x²) + epsilon)` by 1 + its weight and rounds the product."""

    # Gemma's norm and its copies have `eps`, as many other modules do, and `_norm`.
    _NAMES = ("eps", "_norm")
    _ROUTINE = "rms_norm_once"

    def __init__(self, norm: Any, routine: Routine) -> None:
        factors = 1.0 + norm.weight.float()
        super().__init__(norm, lambda rows, _, epsilon: routine(rows, factors, epsilon))


def _is_equal(norm: Any, fused: FusedNorm, weight: Tensor) -> bool:
    """Whether both give the same for an ordinary row, and for one so small that epsilon counts."""
    rows = torch.randn(2, len(weight), generator=torch.Generator().manual_seed(0)) * torch.tensor([[3.0], [1e-3]])
    rows = rows.to(weight.device, weight.dtype)
    return alike(norm(rows), fused(rows))
