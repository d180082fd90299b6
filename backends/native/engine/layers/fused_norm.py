"""RMS norms on CPUs as one compiled function (`src/rms_norm.h`) instead of seven torch operations.

A norm is replaced if it computes what that function computes; one with another formula (Gemma's) stays.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers.fusion import alike


class FusedNorm(nn.Module):
    """Replaces a norm that rounds `x / sqrt(mean(x²) + epsilon)` and multiplies it by its weight."""

    def __init__(self, norm: Any, function: Function) -> None:
        super().__init__()
        self.norm = norm
        self.weight: Tensor = norm.weight
        self.epsilon: float = norm.variance_epsilon
        self._function = function

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """A replacement for `module`; None if it is no such norm, or nothing was compiled."""
        # `variance_epsilon` is the attribute of Llama's RMS norm and its copies, which are most of transformers'.
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 1 or not hasattr(module, "variance_epsilon"):
            return None
        function = typed_function("fused_norm", "rms_norm", weight.dtype) if weight.device.type == "cpu" else None
        fused = cls(module, function) if function else None
        return fused if fused and _is_equal(module, fused, weight) else None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        width = len(self.weight)
        if rows.dtype != self.weight.dtype or rows.shape[-1] != width:  # the compiled code does not check
            normed: Tensor = self.norm(rows)
            return normed
        rows = rows.contiguous()
        normed = torch.empty_like(rows)
        self._function(
            rows.data_ptr(),
            self.weight.data_ptr(),
            normed.data_ptr(),
            rows.numel() // width,
            width,
            self.epsilon,
            torch.get_num_threads(),
        )
        return normed


def _is_equal(norm: Any, fused: FusedNorm, weight: Tensor) -> bool:
    """Whether both give the same for an ordinary row, and for one so small that epsilon counts."""
    rows = torch.randn(2, len(weight), generator=torch.Generator().manual_seed(0)) * torch.tensor([[3.0], [1e-3]])
    expected, found = norm(rows.to(weight.dtype)), fused(rows.to(weight.dtype))
    return alike(expected, found)
