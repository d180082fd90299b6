"""Linear layers on CPUs, with their weights in the blocked order that oneDNN multiplies in.

A plain `nn.Linear` has its weight laid out anew at every call, or is multiplied by a slower routine: for the few rows
of a decode step the packed layer is up to three times as fast, and with `SkinnyGemm`, where it can be had, half as fast
again. What is computed is the same. A packed weight can only be multiplied with, so a model whose code looks at
`weight` itself cannot have it: the self-check tells.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.native.engine.kernels.gemv import SkinnyGemm
from backends.native.engine.layers.fusion import replace_parts

# For how many rows the order is chosen; other numbers work with it, too.
_ROWS = 32
# A smaller weight, in numbers, is multiplied as soon as it is (measured on one row).
_LEAST = 2**16
# Fewer rows take oneDNN longer: one row a seventh more in bfloat16, a quarter more in float32 (measured).
_FEWEST_ROWS = 4


class PackedLinear(nn.Module):
    """Takes the place of a linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = _reordered(linear.weight.detach())
        self.skinny_gemm = SkinnyGemm.of(linear.weight.detach(), self._packed, self.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if not rows.numel():
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        if self.skinny_gemm is not None and self.skinny_gemm.takes(rows):
            return self.skinny_gemm.multiply(rows)
        count = rows.numel() // self.in_features
        if count >= _FEWEST_ROWS:
            return self._multiply(rows)
        padded = functional.pad(rows.reshape(count, -1), (0, 0, 0, _FEWEST_ROWS - count))
        return self._multiply(padded)[:count].view(*rows.shape[:-1], self.out_features)

    def _multiply(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")  # noqa: SLF001
        return product


def pack_linears(model: Any, least: int = _LEAST) -> None:
    """Pack every plain linear layer of `model` that this machine can, one after the other, so that memory holds out.

    Args:
        model: the model, changed in place.
        least: how many numbers a weight must have to be packed.
    """

    def pack(part: Any) -> PackedLinear | None:
        fits = type(part) is nn.Linear and part.weight.numel() >= least and _packable(part.weight)
        return PackedLinear(part) if fits else None

    replace_parts(model, pack)


def _reordered(weight: Tensor) -> Tensor:
    """In oneDNN's order for one thread: for more it lays small weights out in blocks that `SkinnyGemm` cannot read."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)  # noqa: SLF001
    finally:
        torch.set_num_threads(threads)
    return packed


def _packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return weight.dtype == torch.float32
