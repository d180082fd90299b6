"""RMS norms as one compiled routine (`src/rms_norm.h`, `triton_layers`) instead of seven torch operations.

A norm is replaced if it computes what that routine computes, or, on CPUs, what Gemma's module does (the weight is how
far a factor is from 1, and a product is rounded once) or those of gated delta nets (a norm times a gate's activation).
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
    _INPUTS = 1  # some take a gate, too
    _ROUTINES: tuple[str, ...] = ("rms_norm",)

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
        if len(inspect.signature(module.forward).parameters) != cls._INPUTS:
            return None
        # Tried by result: which activation a gate has is written in many ways.
        for name in cls._ROUTINES:
            routine = find_routine(name, weight.device, weight.dtype)
            fused = cls(module, routine) if routine else None
            if fused and _is_equal(module, fused, weight, cls._INPUTS):
                return fused
        return None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        if (rows.dtype, rows.shape[-1]) != self._takes:  # the routine does not check
            normed: Tensor = self.norm(rows)
        else:
            normed = self._rms_norm(rows.contiguous(), self.weight, self.epsilon)
        return normed


class FusedWeightlessNorm(FusedNorm):
    """Replaces a norm of the same kind whose weight is ones that it does not read, as Falcon Mamba's."""

    _NAMES = ("eps", "_norm")


class FusedCenteredNorm(FusedNorm):
    """Replaces a norm that multiplies `x / sqrt(mean(x²) + epsilon)` by 1 + its weight and rounds the product."""

    # Gemma's norm and its copies have `eps`, as many other modules do, and `_norm`.
    _NAMES = ("eps", "_norm")
    _ROUTINES = ("rms_norm_once",)

    def __init__(self, norm: Any, routine: Routine) -> None:
        factors = 1.0 + norm.weight.float()
        super().__init__(norm, lambda rows, _, epsilon: routine(rows, factors, epsilon))


class FusedGatedNorm(FusedNorm):
    """Replaces a norm whose output is multiplied by the activation of a gate (gated delta nets)."""

    _INPUTS = 2
    _ROUTINES = ("rms_norm_silu", "rms_norm_sigmoid")

    def forward(self, rows: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        """[..., width] and a gate of the same shape to the same."""
        if (rows.dtype, rows.shape[-1]) != self._takes or (gate.dtype, gate.shape) != (rows.dtype, rows.shape):
            normed: Tensor = self.norm(rows, gate)
        else:
            normed = self._rms_norm(rows.contiguous(), gate.contiguous(), self.weight, self.epsilon)
        return normed


def _is_equal(norm: Any, fused: FusedNorm, weight: Tensor, inputs: int) -> bool:
    """Whether both give the same for ordinary rows, and for some so small that epsilon counts."""
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(2, len(weight), generator=draw) * torch.tensor([[3.0], [1e-3]]) for _ in range(inputs)]
    given = [each.to(weight.device, weight.dtype) for each in given]
    try:
        expected = norm(*given)
    except Exception:  # a foreign module may raise anything if it needs other arguments
        return False
    return alike(expected, fused(*given))
