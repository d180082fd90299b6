"""RMS norms on CPUs as one compiled routine instead of seven operations of torch.

For the few rows of a decode step starting seven operations takes longer than what they do. A norm is replaced if it is
seen to compute what the routine does; one with a formula of its own (Gemma's) stays. Without a compiler all stay.
"""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.jit import Routine, routine
from backends.native.engine.layers.fusion import alike

_FUNCTIONS = {torch.float32: "norm_float32", torch.bfloat16: "norm_bfloat16"}


class FusedNorm(nn.Module):
    """Takes the place of a norm that rounds `x / sqrt(mean(x²) + epsilon)` and multiplies it by its weight."""

    def __init__(self, norm: Any, function: Routine) -> None:
        super().__init__()
        self.norm = norm
        self.weight: Tensor = norm.weight
        self.epsilon: float = norm.variance_epsilon
        self._function = function

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """In place of `module`; None if it is something else, or nothing can be compiled."""
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 1 or not hasattr(module, "variance_epsilon"):
            return None
        function = _function(weight.dtype) if weight.device.type == "cpu" else None
        fused = cls(module, function) if function else None
        return fused if fused and _agree(module, fused, weight) else None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        width = len(self.weight)
        if rows.dtype != self.weight.dtype or rows.shape[-1] != width:  # the compiled code does not look
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


def _agree(norm: Any, fused: FusedNorm, weight: Tensor) -> bool:
    """Whether both say the same of an ordinary row, and of one so small that epsilon counts."""
    rows = torch.randn(2, len(weight), generator=torch.Generator().manual_seed(0)) * torch.tensor([[3.0], [1e-3]])
    expected, found = norm(rows.to(weight.dtype)), fused(rows.to(weight.dtype))
    return alike(expected, found)


def _function(dtype: torch.dtype) -> Routine | None:
    if dtype not in _FUNCTIONS:
        return None
    pointers, sizes = [ctypes.c_void_p] * 3, [ctypes.c_long] * 2
    return routine("fused_norm", _SOURCE, _FUNCTIONS[dtype], *pointers, *sizes, ctypes.c_float, ctypes.c_int)


# Numbers are rounded where the modules round them.
NORM_ROW = r"""
template <class Kind>
void norm_row(const typename Kind::number* row, const typename Kind::number* weight, typename Kind::number* normed,
              long width, float epsilon) {
  floats squares = {};
  for (long j = 0; j < width; j += LANES) {
    const floats numbers = read<Kind>(row + j, width - j);
    squares += numbers * numbers;
  }
  const float factor = 1.0f / std::sqrt(total(squares) / width + epsilon);
  for (long j = 0; j < width; j += LANES) {
    const floats scaled = rounded<Kind>(read<Kind>(row + j, width - j) * factor);
    write<Kind>(normed + j, read<Kind>(weight + j, width - j) * scaled, width - j);
  }
}
"""
"""One row, perhaps in place: `norm_row`."""
NORM = (
    NORM_ROW
    + r"""
template <class Kind>
void norm(const void* rows, const void* weight, void* normed, long count, long width, float epsilon) {
  using number = typename Kind::number;
#pragma omp for schedule(static)
  for (long row = 0; row < count; row++)
    norm_row<Kind>(static_cast<const number*>(rows) + row * width, static_cast<const number*>(weight),
                   static_cast<number*>(normed) + row * width, width, epsilon);
}
"""
)
"""Rows, by the threads of a region: `norm`."""
_SOURCE = (
    NORM
    + r"""
constexpr long ALONE = 1 << 15;  // so many numbers one thread is done with before others would have begun

#define NORM(name, kind)                                                                                          \
  extern "C" void name(const void* rows, const void* weight, void* normed, long count, long width, float epsilon, \
                       int threads) {                                                                             \
    _Pragma("omp parallel num_threads(threads) if (count * width > ALONE)")                                       \
    norm<kind>(rows, weight, normed, count, width, epsilon);                                                      \
  }
NORM(norm_float32, Float32)
NORM(norm_bfloat16, BFloat16)
"""
)
