"""Weights as integers with a scale and a zero for each group of inputs: what AWQ, GPTQ and compressed-tensors have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.native.engine.formats.packing import spread
from backends.native.engine.kernels.block_product import GROUPED, Blocks

_NIBBLES = 16  # weights whose levels are the lower halves of as many bytes, and the next ones the upper halves


@dataclass(slots=True, frozen=True, eq=False)
class Levels:
    """A weight is (number - zero of its group) * scale of its group.

    Attributes:
        bits: of a number.
        numbers: [outputs, inputs] integers, 0 to 2**bits - 1.
        zeros: [outputs or 1, groups] integers, likewise.
        scales: of the same shape, float32.
        order: [inputs], the group of each input; None: those of a group are neighbours.
        block: rows and columns that share a scale, if outputs are grouped, too.

    Raises:
        ValueError: the shapes do not fit.
    """

    bits: int
    numbers: Tensor
    zeros: Tensor
    scales: Tensor
    order: Tensor | None = None
    block: Sequence[int] | None = None

    def __post_init__(self) -> None:
        rows = (1, len(self.numbers)) if self.block is None else (len(self.scales),)
        if self.zeros.shape != self.scales.shape or len(self.scales) not in rows:
            shapes = [list(each.shape) for each in (self.numbers, self.zeros, self.scales)]
            raise ValueError(f"numbers, zeros and scales are {shapes}")

    def weight(self) -> Tensor:
        """[outputs, inputs] float32."""
        zeros, scales = self.zeros, self.scales
        if self.order is not None:
            zeros, scales = zeros[:, self.order], scales[:, self.order]
        shape = self.numbers.shape
        return (self.numbers - spread(zeros, shape, self.block)) * spread(scales, shape, self.block)

    def blocks(self) -> Blocks | None:
        """The weight in blocks for the compiled product; None: it has none for such groups."""
        outputs, inputs = self.numbers.shape
        groups = self.scales.shape[1]
        length = inputs // groups
        sizes = (size for size in (128, 32) if length % size == 0 and (self.bits, size) in GROUPED)
        size = next(sizes, None)
        if size is None or length * groups != inputs or self.order is not None or self.block is not None:
            return None
        shape = outputs, inputs // size
        fields = (
            _of_blocks(self.scales.float(), shape).view(torch.uint8),
            _of_blocks(self.zeros, shape).to(torch.uint8),
            _packed(self.numbers.to(torch.uint8), self.bits).view(*shape, -1),
        )
        return Blocks.of(GROUPED[self.bits, size], torch.cat(fields, dim=2).flatten(1))


def _of_blocks(numbers: Tensor, shape: tuple[int, int]) -> Tensor:
    """[outputs, blocks, 1] of what is there for each group."""
    return spread(numbers, shape).expand(shape).contiguous().unsqueeze(2)


def _packed(levels: Tensor, bits: int) -> Tensor:
    """[outputs, bytes]."""
    if bits != 4:
        return levels
    lower, upper = levels.view(len(levels), -1, 2, _NIBBLES).unbind(2)
    return (lower | upper << 4).flatten(1)
