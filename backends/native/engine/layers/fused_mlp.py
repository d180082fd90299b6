"""Gated feed-forward layers: gate and up in one product, activation and multiplication in one compiled pass."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from backends.native.engine.layers.comparison import Routine
from backends.native.engine.layers.fusion import Projections, alike, is_linear, place_of
from backends.native.engine.layers.routines import find_routine

_PROJECTIONS = ("gate_proj", "up_proj")
_ACTIVATIONS = ("silu", "gelu")  # GELU by its tanh approximation


class FusedMLP(Projections):
    """Replaces `down(activation(gate(x)) * up(x))`.

    Args:
        module: the model's own.
        activation: `silu` or `gelu`.
        activate: the compiled pass (`src/gated_activation.h`, `triton_layers`).
        join: whether gate and up may be joined.
    """

    def __init__(self, module: Any, activation: str, activate: Routine, *, join: bool) -> None:
        super().__init__({name: getattr(module, name) for name in _PROJECTIONS}, "gate_up_proj" if join else "")
        self.down_proj = module.down_proj
        self.activation = activation
        self._activate = activate

    @classmethod
    def of(cls, module: Any, *, join: bool = True) -> Self | None:
        """A replacement for `module`; None if it is no such layer, or nothing was compiled.

        Args:
            module: any module. Which activation it has is found by comparing its output with each of ours.
            join: whether its linear layers may be joined.
        """
        parts = [getattr(module, name, None) for name in (*_PROJECTIONS, "down_proj")]
        if not all(is_linear(part) for part in parts):
            return None
        gate, up = module.gate_proj, module.up_proj
        device, dtype = place_of(gate)
        if (gate.in_features, gate.out_features) != (up.in_features, up.out_features):
            return None
        # Tried by result, not by `hidden_act`: the names of activations in configurations are many, and of the
        # functions two.
        for activation in _ACTIVATIONS:
            activate = find_routine(f"{activation}_and_mul", device, dtype)
            fused = cls(module, activation, activate, join=join) if activate is not None else None
            if fused is not None and _is_equal(module, fused, device, dtype):
                return fused
        return None

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        # Each row of the projection: the gate's numbers, then as many of up.
        product: Tensor = self.down_proj(self._activate(self.project(rows)))
        return product


def _is_equal(module: Any, fused: FusedMLP, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether both give the same for an ordinary row, and for one so large that a clamp would show."""
    rows = torch.randn(2, module.gate_proj.in_features, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1.0], [1e3]]
    )
    rows = rows.to(device, dtype)
    try:
        expected = module(rows)
    except Exception:  # a foreign module may raise anything if it needs other arguments
        return False
    return alike(expected, fused(rows))
