"""Linear layers on CPUs whose weights are rounded to 8 or 4 bits, for decode steps of a few rows.

Those of accelerators are in `int8_linear`.

Only weights are quantized, not activations. A step of few rows is bound by how fast weights can be read, and reads a
half or a quarter of the bytes. A step of more rows is bound by arithmetic; for it the same rounded weights are also
kept in the model's dtype. So quantization saves time here, not memory. The output head stays in the model's dtype: its
errors would go straight to the logits.

The levels are those of GGUF's Q8_0 and Q4_1, multiplied as those are (`block_linear`): a row's product does not depend
on how many rows there are. Where nothing was compiled, torch multiplies levels of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backends.native.engine.attention.interface import text_part
from backends.native.engine.kernels.block_product import Blocks, can_multiply
from backends.native.engine.layers.block_linear import BlockLinear

Product = Callable[[Tensor], Tensor]
"""[rows, in_features] to [rows, out_features]."""

BITS = {"int8": 8, "int4": 4}
"""The values of the engine's option `dtype` that mean quantized layers."""
# With more rows than this the product with the model's dtype is faster (measured): than that of blocks, and than
# torch's.
_MOST_ROWS = 6
_MOST_ROWS_BY_TORCH = {8: 2, 4: 4}
_GROUP = 32  # weights of one output that share a scale and a least or a middle
_OUTPUTS = 16  # the number of outputs must be a multiple of it, for torch's product in 4 bits
_KINDS = {8: 8, 4: 3}  # ggml's numbers of Q8_0 and Q4_1
_LARGEST = 6e4  # scales and least weights of blocks are float16


class QuantizedLinear(nn.Module):
    """Replaces a linear layer.

    Args:
        linear: the layer; it gets the rounded weight.
        bits: 8 or 4.
        most_rows: with how many rows blocks are multiplied at most; None: with how many that pays.

    Attributes:
        few: the layer for up to `most_rows` rows, in blocks; None: nothing was compiled, or they cannot hold it.
        many: `linear`, for steps of more rows; it may be replaced (by a packed one).
        most_rows: see above.
    """

    def __init__(self, linear: nn.Linear, bits: int, most_rows: int | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach()
        self.few: BlockLinear | None = None
        self._multiply: Product
        if _fits_blocks(weight):
            self.few = BlockLinear((_blocks(weight.float(), bits),), _detached(linear.bias), weight.dtype)
            self.most_rows = _MOST_ROWS if most_rows is None else most_rows
            rounded = self.few.weight
        else:
            self.most_rows = _MOST_ROWS_BY_TORCH[bits]
            self._multiply, rounded = _to_int8(weight) if bits == BITS["int8"] else _to_int4(weight)
        # The same rounded numbers on both ways, but for the rounding to the dtype.
        linear.weight = nn.Parameter(rounded.to(weight.dtype), requires_grad=False)
        self.many: nn.Module = linear

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        few = 0 < rows.numel() <= self.most_rows * self.in_features
        layer = self.few if few else self.many
        if layer is not None:
            product: Tensor = layer(rows)
            return product
        product = self._multiply(rows.reshape(-1, self.in_features)).view(*rows.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias


def quantize_linears(model: Any, bits: int, most_rows: int | None = None) -> int:
    """Quantize the plain linear layers of a language model but its head, in place, one at a time to save memory.

    Args:
        model: the model; its towers for images are left alone.
        bits: 8 or 4.
        most_rows: see `QuantizedLinear`.

    Returns:
        How many layers were quantized.
    """
    found = [each for each in plain_linears(model) if _fits(each[2], bits)]
    for parent, name, child in found:
        setattr(parent, name, QuantizedLinear(child, bits, most_rows))
    return len(found)


def plain_linears(model: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The plain linear layers of a language model but its head, each with its parent and its name there."""
    head = model.get_output_embeddings()
    return [
        (parent, name, child)
        for parent in text_part(model).modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child is not head
    ]


def _fits(linear: nn.Linear, bits: int) -> bool:
    return bits == BITS["int8"] or not (linear.in_features % _GROUP or linear.out_features % _OUTPUTS)


def _fits_blocks(weight: Tensor) -> bool:
    compiled = can_multiply(weight.dtype)
    return compiled and weight.shape[1] % _GROUP == 0 and float(weight.abs().max()) < _LARGEST


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


def _blocks(weight: Tensor, bits: int) -> Blocks:
    """A float32 weight [outputs, inputs] in Q8_0 or Q4_1, by scales as they are stored."""
    groups = weight.reshape(len(weight), -1, _GROUP)
    if bits == BITS["int8"]:
        scales = (groups.abs().amax(2, keepdim=True) / 127).half()
        levels = _levels(groups, scales).clamp_(-127, 127).to(torch.int8).view(torch.uint8)
        fields = [scales.view(torch.uint8), levels]
    else:
        least, greatest = groups.aminmax(dim=2, keepdim=True)
        scales, least = ((greatest - least) / 15).half(), least.half()
        levels = _levels(groups - least, scales).clamp_(0, 15).to(torch.uint8)
        lower, upper = levels[..., : _GROUP // 2], levels[..., _GROUP // 2 :]  # the halves of the bytes
        fields = [scales.view(torch.uint8), least.view(torch.uint8), lower | upper << 4]
    return Blocks.of(_KINDS[bits], torch.cat(fields, dim=2).flatten(1))


def _levels(numbers: Tensor, scales: Tensor) -> Tensor:
    # A scale of 0 is of a group whose weights are equal, or next to nothing.
    return (numbers / scales.float().clamp(min=1e-12)).round_()


def _to_int8(weight: Tensor) -> tuple[Product, Tensor]:
    """Symmetric, with a scale for each output. Scales are rounded to the kernel's dtype before weights are divided."""
    levels, scales = int8_levels(weight, weight.dtype)
    multiply = torch.ops.aten._weight_int8pack_mm  # noqa: SLF001
    return partial(multiply, mat2=levels, scales=scales), levels * scales.float().unsqueeze(1)


def int8_levels(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[outputs, inputs] int8, and the factor of each output in `dtype`."""
    # 127, not 128: symmetric, so that the greatest weight and its negative both fit. The clamp is for an output of
    # zeros.
    scales = (weight.float().abs().amax(1) / 127).clamp_(min=1e-12).to(dtype)
    return (weight / scales.float().unsqueeze(1)).round_().clamp_(-127, 127).to(torch.int8), scales


def _to_int4(weight: Tensor) -> tuple[Product, Tensor]:
    """Asymmetric: 16 levels from a group's least weight to its greatest, by a scale and a middle, which is level 8."""
    groups = weight.float().reshape(len(weight), -1, _GROUP)
    least, greatest = groups.aminmax(dim=2, keepdim=True)
    # 15 steps between 16 levels; rounded to the kernel's dtype first, since the kernel multiplies by these.
    scales = ((greatest - least) / 15).clamp_(min=1e-12).to(weight.dtype).float()
    middles = (least + 8 * scales).to(weight.dtype).float()
    levels = ((groups - middles) / scales).round_().add_(8).clamp_(0, 15)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.flatten(1).int(), 1)  # noqa: SLF001
    lines = torch.cat((scales, middles), dim=2).transpose(0, 1).to(weight.dtype).contiguous()  # [groups, outputs, 2]
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
    product = partial(multiply, mat2=packed, qGroupSize=_GROUP, qScaleAndZeros=lines)
    return product, ((levels - 8) * scales + middles).flatten(1)
