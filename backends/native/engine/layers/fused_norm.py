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

    def __init__(self, norm: Any, routine: Routine) -> None:
        super().__init__()
        self.norm = norm
        self.weight: Tensor = norm.weight
        self.epsilon: float = norm.variance_epsilon
        self._rms_norm = routine

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """A replacement for `module`; None if it is no such norm, or nothing was compiled."""
        # `variance_epsilon` is the attribute of Llama's RMS norm and its copies, which are most of transformers'.
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 1 or not hasattr(module, "variance_epsilon"):
            return None
        # Some take a gate, too (Mamba 2, gated delta nets).
        if len(inspect.signature(module.forward).parameters) != 1:
            return None
        routine = find_routine("rms_norm", weight.device, weight.dtype)
        fused = cls(module, routine) if routine else None
        return fused if fused and _is_equal(module, fused, weight) else None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        if rows.dtype != self.weight.dtype or rows.shape[-1] != len(self.weight):  # the routine does not check
            normed: Tensor = self.norm(rows)
        else:
            normed = self._rms_norm(rows.contiguous(), self.weight, self.epsilon)
        return normed


class FusedCenteredNorm(nn.Module):
    """Replaces a norm that multiplies `x / sqrt(mean(x²) + epsilon)` by 1 + its weight and rounds the product."""

    def __init__(self, norm: Any, routine: Routine) -> None:
        super().__init__()
        self.norm = norm
        self._factors: Tensor = 1.0 + norm.weight.float()
        self._dtype = norm.weight.dtype
        self._epsilon: float = norm.eps
        self._rms_norm = routine

    @classmethod
    @torch.inference_mode()
    def of(cls, module: Any) -> Self | None:
        """A replacement for `module`; None if it is no such norm, or nothing was compiled."""
        # Gemma's norm and its copies have `eps`, as many other modules do, and `_norm`.
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 1 or not hasattr(module, "_norm"):
            return None
        if (
            not isinstance(getattr(module, "eps", None), float)
            or len(inspect.signature(module.forward).parameters) != 1
        ):
            return None
        routine = find_routine("rms_norm_once", weight.device, weight.dtype)
        fused = cls(module, routine) if routine else None
        return fused if fused and _is_equal(module, fused, weight) else None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        if rows.dtype != self._dtype or rows.shape[-1] != len(self._factors):  # the routine does not check
            normed: Tensor = self.norm(rows)
        else:
            normed = self._rms_norm(rows.contiguous(), self._factors, self._epsilon)
        return normed


def _is_equal(norm: Any, fused: FusedNorm | FusedCenteredNorm, weight: Tensor) -> bool:
    """Whether both give the same for an ordinary row, and for one so small that epsilon counts."""
    rows = torch.randn(2, len(weight), generator=torch.Generator().manual_seed(0)) * torch.tensor([[3.0], [1e-3]])
    rows = rows.to(weight.device, weight.dtype)
    return alike(norm(rows), fused(rows))
