"""Linear layers on accelerators whose weights are kept in 8 bits: half of bfloat16's memory, and of the bytes to read.

Only weights are quantized, symmetrically, with a scale for each output, as on CPUs (`quantized_linear`). A step of few
rows multiplies them as they are (`kernels.triton_linear`, where it proves right); for a step of more rows, or without
Triton, the weight is expanded first. The sums of the two ways are rounded otherwise, as those of torch's products of
other shapes are. The output head stays in the model's dtype.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.native.engine.layers.quantized_linear import int8_levels, plain_linears
from backends.native.engine.layers.routines import find_routine

MAX_ROWS = 256
"""With more rows expanding the weight costs less than reading it for each tile of rows."""


class Int8Linear(nn.Module):
    """Replaces a linear layer.

    Args:
        levels: [outputs, inputs] int8.
        scales: [outputs] float32, the factors of the outputs' levels.
        bias: [outputs], or None.
        dtype: of its rows and products.
    """

    levels: Tensor
    scales: Tensor

    def __init__(self, levels: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = levels.shape
        self.register_buffer("levels", levels)
        self.register_buffer("scales", scales)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.dtype = dtype
        self._multiply = find_routine("multiply_int8", levels.device, dtype)

    @classmethod
    def of(cls, linear: nn.Linear, device: torch.device) -> Self:
        """The same layer on a device, rounded."""
        weight = linear.weight.detach().to(device)
        bias = None if linear.bias is None else linear.bias.detach().to(device)
        return cls(*int8_levels(weight, torch.float32), bias, weight.dtype)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        flat = rows.reshape(-1, self.in_features)
        if self._multiply is not None and 0 < len(flat) <= MAX_ROWS:
            product: Tensor = self._multiply(flat.contiguous(), self.levels, self.scales, self.bias)
        else:
            product = functional.linear(flat, self.weight, self.bias)
        return product.view(*rows.shape[:-1], self.out_features)

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], made anew."""
        return self.levels.to(self.dtype) * self.scales.to(self.dtype).unsqueeze(1)


def quantize_on_device(model: Any, device: torch.device) -> int:
    """Quantize the plain linear layers of a language model but its head, in place, each as it is sent to a device.

    So the device never holds the model in its own dtype.

    Args:
        model: wherever it is; what is not quantized stays there.
        device: an accelerator.

    Returns:
        How many layers were quantized.
    """
    found = plain_linears(model)
    for parent, name, child in found:
        setattr(parent, name, Int8Linear.of(child, device))
    return len(found)


def join_int8(*linears: Int8Linear) -> Int8Linear | None:
    """One layer with the outputs of several, one after the other; None if they differ in more than their outputs."""
    first = linears[0]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if len({(linear.in_features, linear.dtype) for linear in linears}) > 1 or len(biases) not in (0, len(linears)):
        return None
    levels, scales = (torch.cat([getattr(each, name) for each in linears]) for name in ("levels", "scales"))
    return Int8Linear(levels, scales, torch.cat([bias.detach() for bias in biases]) if biases else None, first.dtype)
