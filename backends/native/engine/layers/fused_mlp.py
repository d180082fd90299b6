"""Gated feed-forward layers: gate and up in one product, activation and multiplication in one compiled pass."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from backends.native.engine.layers.comparison import Routine
from backends.native.engine.layers.fusion import Projections, alike, is_linear, place_of
from backends.native.engine.layers.routines import find_routine

_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""What models call the projections: gate, up and down."""
_ACTIVATIONS = ("silu", "gelu")  # GELU by its tanh approximation


class FusedMLP(Projections):
    """Replaces `down(activation(gate(x)) * up(x))`.

    Args:
        module: the model's own.
        names: of its linear layers.
        activation: `silu` or `gelu`.
        activate: the compiled pass (`src/gated_activation.h`, `triton_layers`).
        join: whether gate and up may be joined.
    """

    def __init__(
        self, module: Any, names: tuple[str, str, str], activation: str, activate: Routine, *, join: bool
    ) -> None:
        gate, up, down = names
        super().__init__({name: getattr(module, name) for name in (gate, up)}, "gate_up_proj" if join else "")
        self._down = down
        setattr(self, down, getattr(module, down))
        self.activation = activation
        self._activate = activate

    @classmethod
    def of(cls, module: Any, *, join: bool = True) -> Self | None:
        """A replacement for `module`; None if it is no such layer, or nothing was compiled.

        Args:
            module: any module. Which activation it has is found by comparing its output with each of ours.
            join: whether its linear layers may be joined.
        """
        names = next((each for each in _NAMES if all(is_linear(getattr(module, name, None)) for name in each)), None)
        if names is None:
            return None
        gate, up = (getattr(module, name) for name in names[:2])
        device, dtype = place_of(gate)
        if (gate.in_features, gate.out_features) != (up.in_features, up.out_features):
            return None
        # Tried by result, not by `hidden_act`: the names of activations in configurations are many, and of the
        # functions two.
        for activation in _ACTIVATIONS:
            activate = find_routine(f"{activation}_and_mul", device, dtype)
            fused = cls(module, names, activation, activate, join=join) if activate is not None else None
            if fused is not None and _is_equal(module, fused, gate.in_features, device, dtype):
                return fused
        return None

    @property
    def down(self) -> Any:
        """The linear layer behind the activation."""
        return getattr(self, self._down)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., width] to the same."""
        # Each row of the projection: the gate's numbers, then as many of up.
        product: Tensor = self.down(self._activate(self.project(rows)))
        return product


def _is_equal(module: Any, fused: FusedMLP, width: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether both give the same for an ordinary row, and for one so large that a clamp would show."""
    rows = torch.randn(2, width, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1e3]])
    rows = rows.to(device, dtype)
    try:
        expected = module(rows)
    except Exception:  # a foreign module may raise anything if it needs other arguments
        return False
    return alike(expected, fused(rows))
