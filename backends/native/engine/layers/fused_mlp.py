"""Gated feed-forward layers on CPUs: gate and up in one product, their activation and product in one compiled pass."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers.fusion import Projections, alike

_PROJECTIONS = ("gate_proj", "up_proj")
_ACTIVATIONS = ("silu", "gelu")  # the latter by its tanh


class FusedMLP(Projections):
    """Takes the place of `down(activation(gate(x)) * up(x))`."""

    def __init__(self, module: Any, activation: str, activate: Function, *, join: bool) -> None:
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
        kinds = {
            activation: typed_function("fused_mlp", f"{activation}_and_mul", gate.weight.dtype)
            for activation in _ACTIVATIONS
        }
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
