"""Products with weights that stay quantized, in the blocks of a GGUF file or in groups (`src/blocks.h`).

Strategy: a step of few rows takes as long as its weights take to be read, so their blocks are read as the file has
them, and not the float32 or bfloat16 numbers that they stand for: of a weight of 4 bits a seventh or two sevenths of
the bytes. Their levels are multiplied in registers with exact activations, so the product is that of the expanded
weight. Only the order of the bytes is another one: those of 16 outputs stand side by side.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Function, typed_function

MAX_ROWS = 64
"""The most rows that the compiled product takes at once; MAX_ROWS of `src/gemm.h`."""
# Rows of float32 up to which blocks are multiplied on CPUs with AVX2 alone.
_MOST_WITHOUT_AVX512 = 3 * MAX_ROWS
KINDS = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
"""The types that the compiled code reads, by ggml's numbers: the weights of a block and its bytes. In this order Q4_0,
Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K."""
GROUPED = {
    (4, 32): -1,
    (4, 128): -2,
    (8, 32): -3,
    (8, 128): -4,
}
"""Types that are not ggml's, by the bits of a weight and the weights of a block: a float32 scale, a byte with the level
that stands for zero, and the levels. `Grouped` of `src/block_formats.h`."""
_SIZES = KINDS | {kind: (size, 5 + size * bits // 8) for (bits, size), kind in GROUPED.items()}
_FIELDS = {
    2: ((1, 2), (4, 4)),
    3: ((2, 2), (4, 4)),
    6: ((1, 2), (5, 4)),
    7: ((2, 2), (5, 4)),
    8: ((1, 2), (8, 4)),
    12: ((2, 2), (12, 1), (32, 4)),
    13: ((2, 2), (12, 1), (40, 4)),
    14: ((48, 4), (16, 1), (1, 2)),
    **{kind: ((1, 4), (1, 1), (size * bits // 32, 4)) for (bits, size), kind in GROUPED.items()},
}
"""Of each type what its blocks consist of, so many fields of so many bytes each: see `src/block_formats.h`."""
ROOM = 35 / 32
"""The float32 for an input, of memory for the activations of a product: `Activations` of `src/blocks.h`."""
_LANES = 16  # outputs whose blocks stand side by side; LANES of `src/simd.h`
_LIBRARY = "block_product"
# Bytes of a part of a weight that is expanded at once, for steps of more rows: some times a second-level cache.
_EXPANDED_BYTES = 16 * 1024**2


@dataclass(slots=True, eq=False, frozen=True)
class Blocks:
    """A matrix in blocks.

    Attributes:
        kind: ggml's number of the type, one of `KINDS`, or one of `GROUPED`.
        outputs: rows of the matrix.
        inputs: its columns.
        bytes: [groups of 16 outputs, blocks of an output, 16 * bytes of a block] uint8: of 16 blocks the first field,
            then the second one, and so on.
    """

    kind: int
    outputs: int
    inputs: int
    bytes: Tensor

    @classmethod
    def of(cls, kind: int, rows: Tensor) -> Self:
        """Of `rows` [outputs, bytes] uint8: blocks one after the other, as a GGUF file has them."""
        size, width = _SIZES[kind]
        outputs, count = len(rows), rows.shape[1] // width
        whole = torch.zeros(-(-outputs // _LANES) * _LANES, count * width, dtype=torch.uint8)
        whole[:outputs] = rows
        fields = [field for number, wide in _FIELDS[kind] for field in (wide,) * number]
        each = torch.split(whole.view(-1, _LANES, count, width).transpose(1, 2), fields, dim=3)
        return cls(kind, outputs, count * size, torch.cat([field.flatten(2) for field in each], dim=2))


def can_multiply(dtype: torch.dtype) -> bool:
    """Whether there is a compiled product for rows of `dtype`."""
    return typed_function(_LIBRARY, "multiply_blocks", dtype) is not None


@cache
def most_rows(dtype: torch.dtype) -> int:
    """The most rows of `dtype` that are multiplied by blocks; for more, expanding the blocks is as fast (measured)."""
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        return MAX_ROWS
    # torch has no fast product of bfloat16 there.
    return _MOST_WITHOUT_AVX512 if dtype == torch.float32 else sys.maxsize


class BlockProduct:
    """What can be done with the blocks of one weight, or of several whose outputs follow each other.

    Args:
        parts: with the same inputs.
        bias: [outputs of all], added to every row, or None.
        dtype: of rows and products; one for which `can_multiply` is true.
    """

    def __init__(self, parts: tuple[Blocks, ...], bias: Tensor | None, dtype: torch.dtype) -> None:
        self.parts = parts
        self.inputs, self.outputs = parts[0].inputs, sum(part.outputs for part in parts)
        self._bias = bias
        self._dtype = dtype
        self._multiply, self._expand, self._look_up, self._in_team = (
            _function(name, dtype)
            for name in ("multiply_blocks", "expand_blocks", "look_up_blocks", "multiply_blocks_in_team")
        )
        # `Part` of `src/blocks.h`, one after the other. `parts` keeps the memory that they point into.
        fields = [field for part in parts for field in (part.bytes.data_ptr(), part.kind, part.outputs)]
        self._described = (ctypes.c_long * len(fields))(*fields)

    def __deepcopy__(self, _: object) -> BlockProduct:
        """The same: nothing changes after it was made, and a copied description would point into this one's memory."""
        return self

    @property
    def address(self) -> int:
        """Where the compiled code finds the parts, of which there are `len(parts)`."""
        return ctypes.addressof(self._described)

    @property
    def in_team(self) -> int | None:
        """The address of the product for code in which all threads run already."""
        return ctypes.cast(self._in_team, ctypes.c_void_p).value  # type: ignore[arg-type]

    def multiply(self, rows: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        rows = rows.contiguous()
        product = rows.new_empty(*rows.shape[:-1], self.outputs)
        count = rows.numel() // self.inputs
        room = torch.empty(int(min(count, MAX_ROWS) * self.inputs * ROOM))
        self._multiply(
            rows.data_ptr(),
            self.address,
            len(self.parts),
            None if self._bias is None else self._bias.data_ptr(),
            product.data_ptr(),
            room.data_ptr(),
            count,
            self.inputs,
            torch.get_num_threads(),
        )
        return product

    def expanded(self) -> Iterator[tuple[int, Tensor]]:
        """The weights: of some outputs after the other the first one's number, and [inputs, those outputs]."""
        most = max(1, _EXPANDED_BYTES // (_LANES * self.inputs * self._dtype.itemsize)) * _LANES
        before = 0
        for index, part in enumerate(self.parts):
            address = self.address + index * 3 * ctypes.sizeof(ctypes.c_long)
            for first in range(0, part.outputs, most):
                weights = torch.empty(self.inputs, min(most, part.outputs - first), dtype=self._dtype)
                count = weights.shape[1]
                self._expand(address, first, count, weights.data_ptr(), self.inputs, torch.get_num_threads())
                yield before + first, weights
            before += part.outputs

    def look_up(self, ids: Tensor) -> Tensor:
        """[...] int64 to [..., inputs]: the weights of these outputs of a single part.

        Raises:
            IndexError: an output does not exist.
        """
        ids = ids.contiguous()
        # The compiled code does not check, and would read other memory.
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.outputs:
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} of a matrix of {self.outputs}")
        rows = torch.empty(*ids.shape, self.inputs, dtype=self._dtype)
        self._look_up(self.address, ids.data_ptr(), ids.numel(), rows.data_ptr(), self.inputs)
        return rows


def _function(name: str, dtype: torch.dtype) -> Function:
    found = typed_function(_LIBRARY, name, dtype)
    assert found is not None, f"no product of blocks for {dtype}; ask `can_multiply`"
    return found
