"""Gated feed-forward layers on CPUs: gate and up in one product, their activation and product in one compiled pass."""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.jit import Routine, routine
from backends.native.engine.layers.fusion import Projections, alike

_PROJECTIONS = ("gate_proj", "up_proj")
_ACTIVATIONS = ("silu", "gelu")  # the latter by its tanh
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class FusedMLP(Projections):
    """Takes the place of `down(activation(gate(x)) * up(x))`."""

    def __init__(self, module: Any, activation: str, activate: Routine, *, join: bool) -> None:
        super().__init__({name: getattr(module, name) for name in _PROJECTIONS}, "gate_up_proj" if join else "")
        self.down_proj = module.down_proj
        self.activation = activation
        self._activate = activate

    @classmethod
    def of(cls, module: Any, *, join: bool = True) -> Self | None:
        """In place of `module`; None if it is something else, or nothing can be compiled.

        Args:
            module: perhaps a gated layer.
            join: whether its linear layers may be joined.
        """
        parts = [getattr(module, name, None) for name in (*_PROJECTIONS, "down_proj")]
        if not all(type(part) is nn.Linear for part in parts):
            return None
        gate, up = module.gate_proj, module.up_proj
        if gate.weight.device.type != "cpu" or gate.weight.shape != up.weight.shape:
            return None
        kinds = {activation: _function(activation, gate.weight.dtype) for activation in _ACTIVATIONS}
        candidates = (
            cls(module, name, activate, join=join) for name, activate in kinds.items() if activate is not None
        )
        return next((fused for fused in candidates if _agree(module, fused, gate.weight)), None)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        joined = self.project(rows)
        width = joined.shape[-1] // 2
        gated = joined.new_empty(*joined.shape[:-1], width)
        self._activate(joined.data_ptr(), gated.data_ptr(), gated.numel() // width, width, torch.get_num_threads())
        product: Tensor = self.down_proj(gated)
        return product


def _agree(module: Any, fused: FusedMLP, weight: Tensor) -> bool:
    """Whether both say the same of an ordinary row, and of one so large that nothing may be cut off."""
    rows = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1e3]])
    rows = rows.to(weight.dtype)
    try:
        expected = module(rows)
    except Exception:  # a foreign module may raise anything if it wants to be given more
        return False
    return alike(expected, fused(rows))


def _function(activation: str, dtype: torch.dtype) -> Routine | None:
    if dtype not in _DTYPES:
        return None
    pointers, sizes = [ctypes.c_void_p] * 2, [ctypes.c_long] * 2
    return routine("fused_mlp", _SOURCE, f"{activation}_{_DTYPES[dtype]}", *pointers, *sizes, ctypes.c_int)


# Numbers are rounded where the modules round them.
GATE = r"""
inline floats sigmoid(floats x) {
  const floats most = floats{} + 87.0f;
  return 1.0f / (1.0f + exponential(-x > most ? most : -x));
}

struct Silu {
  static floats of(floats x) { return x * sigmoid(x); }
};

struct Gelu {  // (1 + tanh(y)) / 2 is the sigmoid of 2 y
  static floats of(floats x) { return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }
};

template <class Kind, class Activation>
void gate(const void* joined, void* gated, long rows, long width) {
  using number = typename Kind::number;
#pragma omp for schedule(static)
  for (long row = 0; row < rows; row++) {
    const number *gates = static_cast<const number*>(joined) + 2 * row * width, *ups = gates + width;
    number* target = static_cast<number*>(gated) + row * width;
    for (long j = 0; j < width; j += LANES) {
      const floats activated = rounded<Kind>(Activation::of(read<Kind>(gates + j, width - j)));
      write<Kind>(target + j, activated * read<Kind>(ups + j, width - j), width - j);
    }
  }
}
"""
"""Rows of gates and then as many numbers that they let through, by the threads of a region: `gate`."""
_SOURCE = (
    GATE
    + r"""
constexpr long ALONE = 1 << 13;  // so many numbers one thread is done with before others would have begun

#define GATE(name, kind, activation)                                                              \
  extern "C" void name(const void* joined, void* gated, long rows, long width, int threads) {     \
    _Pragma("omp parallel num_threads(threads) if (rows * width > ALONE)")                        \
    gate<kind, activation>(joined, gated, rows, width);                                           \
  }
GATE(silu_float32, Float32, Silu)
GATE(silu_bfloat16, BFloat16, Silu)
GATE(gelu_float32, Float32, Gelu)
GATE(gelu_bfloat16, BFloat16, Gelu)
"""
)
