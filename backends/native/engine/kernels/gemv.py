"""Skinny GEMM: few rows by a weight in oneDNN's blocked order, which is most of a decode step.

Strategy: with few rows, a product takes as long as its weight takes to be read, and oneDNN reads at two thirds of the
rate that memory allows. The C++ (`src/gemm.h`) streams once through the same blocked bytes, so that no weight is held
twice, with the sums of up to six rows in registers. For more rows than pay, or where oneDNN chose another order or
nothing was compiled, `packed_linear` calls oneDNN. On a CPU whose oneDNN multiplies bfloat16 by a slow instruction, any
number of rows pays. With AMX (`src/tiles.h`) 16 rows of bfloat16 take 5 % longer than one. On an x86 CPU without
AVX512-BF16 oneDNN takes five times as long for bfloat16 (Intel before Sapphire Rapids), or does not multiply it at all
(without AVX-512): there `blocked` brings a weight into that order, and all rows are taken.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.kernels.jit import Function, function, typed_function

MAX_ROWS = 64
"""The most rows that the compiled code takes at once; MAX_ROWS of `src/gemm.h`."""
# With more rows of bfloat16, oneDNN is faster where it has instructions for matrices: than the compiled code with AMX,
# and without.
_MOST_BY_TILES = 32
_MOST_BESIDE_MATRICES = 24
BLOCK = 64
"""Outputs that are computed together, and lie together but for `_TOGETHER_IN_TILES`; BLOCK of `src/gemm.h`."""
_TOGETHER_IN_TILES = 32  # TOGETHER of `src/tiles.h`
_PADDED = 16  # words to whose multiple the inputs of a block are padded; PADDED of `src/gemm.h`
_PER_WORD = {torch.float32: 1, torch.bfloat16: 2}  # inputs that lie together for one output; PER_WORD of `src/dot.h`


class SkinnyGemm:
    """The product of few rows with one weight.

    Args:
        function: the compiled product.
        packed: the weight, in the blocked order.
        shape: the weight's outputs and inputs.
        bias: [outputs], added to every row, or None.
    """

    def __init__(self, function: Function, packed: Tensor, shape: tuple[int, int], bias: Tensor | None) -> None:
        self._function = function
        # Kept for its memory: `address` points into it.
        self._packed = packed
        # Fixed for the layer's life, so it is read once; the fused decoder layer reads it from here.
        self.address = address_of(packed)
        self._outputs, self._inputs = shape
        self._bias = bias
        self._dtype = packed.dtype
        self._most = _most_rows(packed.dtype) * self._inputs

    @classmethod
    def of(cls, weight: Tensor, packed: Tensor, bias: Tensor | None, outputs: int | None = None) -> SkinnyGemm | None:
        """For `packed`, which oneDNN or `blocked` made of `weight` [out_features, in_features].

        None if nothing was compiled, or `packed` has another order than the compiled code reads.

        Args:
            weight: the weight.
            packed: the same in that order.
            bias: [outputs].
            outputs: how many of the weight's outputs are computed; all, if None.
        """
        function = typed_function("gemv", "gemv", weight.dtype)
        if function is None or not _is_blocked(weight, packed):
            return None
        return cls(function, packed, (outputs or weight.shape[0], weight.shape[1]), bias)

    def takes(self, rows: Tensor) -> bool:
        """Whether `multiply` may be called with `rows`: the compiled code checks nothing."""
        return 0 < rows.numel() <= self._most and rows.shape[-1] == self._inputs and rows.dtype == self._dtype

    def multiply(self, rows: Tensor, *, biased: bool = True) -> Tensor:
        """[..., in_features] to [..., out_features]; the bias is added if `biased`."""
        # The compiled code reads adjacent rows; decode's rows already are, and are not copied.
        rows = rows.contiguous()
        product = rows.new_empty(*rows.shape[:-1], self._outputs)
        self._function(
            rows.data_ptr(),
            self.address,
            None if self._bias is None or not biased else self._bias.data_ptr(),
            product.data_ptr(),
            rows.numel() // self._inputs,
            self._outputs,
            self._inputs,
            torch.get_num_threads(),
        )
        return product


@cache
def _most_rows(dtype: torch.dtype) -> int:
    """With how many rows the compiled code is used: with more, oneDNN is as fast (measured)."""
    if dtype == torch.float32:
        return MAX_ROWS
    if _multiplies_by_tiles():
        return _MOST_BY_TILES
    if _has_matrix_products():
        return _MOST_BESIDE_MATRICES
    in_float32 = function("gemv", "multiplies_in_float32")
    return sys.maxsize if in_float32 is not None and in_float32() else MAX_ROWS


def _multiplies_by_tiles() -> bool:
    """Whether the compiled code multiplies bfloat16 by AMX, for which oneDNN has another order of weights."""
    by_tiles = function("gemv", "multiplies_by_tiles")
    return by_tiles is not None and bool(by_tiles())


def _has_matrix_products() -> bool:
    """Whether oneDNN has instructions for matrices of bfloat16 here: AMX, or those of ARM."""
    return platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_amx_tile_supported()  # noqa: SLF001


def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN is to multiply numbers of a type, and not the compiled code alone.

    oneDNN can multiply them; for bfloat16 also the CPU has instructions, or nothing was compiled.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype != torch.bfloat16:
        return dtype == torch.float32
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001
        return False
    has_instructions = _has_matrix_products() or torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001
    return has_instructions or typed_function("gemv", "gemv", dtype) is None


def address_of(packed: Tensor) -> int:
    """Where a packed weight begins. oneDNN's tensors are opaque to torch."""
    address: int = torch.ops.mkldnn.data_ptr(packed) if packed.is_mkldnn else packed.data_ptr()
    return address


def size_of(packed: Tensor) -> int:
    """The bytes of a packed weight."""
    size: int = torch.ops.mkldnn._nbytes(packed) if packed.is_mkldnn else packed.nbytes  # noqa: SLF001
    return size


def blocked(weight: Tensor, together: int = BLOCK) -> Tensor:
    """[outputs, inputs] as the compiled code reads it: [outputs / together, padded inputs / n, together, n]."""
    per_word = _PER_WORD[weight.dtype]
    padded = functional.pad(weight, (0, -weight.shape[1] % (_PADDED * per_word)))
    return padded.reshape(len(weight) // together, together, -1, per_word).transpose(1, 2).contiguous()


def takes_all_rows(dtype: torch.dtype, inputs: int) -> bool:
    """Whether the compiled code may multiply any number of rows of so many inputs, so that nothing else has to."""
    is_compiled = typed_function("gemv", "gemv", dtype) is not None
    return is_compiled and not inputs % _PER_WORD[dtype] and _most_rows(dtype) == sys.maxsize


def _is_blocked(weight: Tensor, packed: Tensor) -> bool:
    """Whether `packed` has the order that `src/gemm.h` reads, or for AMX `src/tiles.h`.

    The first block, the middle one and the last are compared with the weight.
    """
    outputs, inputs = weight.shape
    per_word = _PER_WORD[weight.dtype]
    size = outputs * (inputs + -inputs % (_PADDED * per_word)) * weight.itemsize
    # Another size means another padding; the address must lie on a cache line.
    address = address_of(packed)
    if outputs % BLOCK or inputs % per_word or size_of(packed) != size or address % BLOCK:
        return False
    # The only way to look at the bytes is by their address. No copy is made.
    memory = (ctypes.c_char * size).from_address(address)
    together = _TOGETHER_IN_TILES if weight.dtype == torch.bfloat16 and _multiplies_by_tiles() else BLOCK
    found = torch.frombuffer(memory, dtype=weight.dtype).view(outputs // together, -1, together, per_word)
    # Three blocks are enough to recognize an order; comparing all would read every weight once more at load.
    for block in (0, len(found) // 2, len(found) - 1):
        own = weight[block * together : (block + 1) * together]
        if not torch.equal(found[block], blocked(own, together)[0]):
            return False
    return True
