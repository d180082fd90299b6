"""The product of a few rows with a weight in oneDNN's blocked order: what a step of decode mostly is.

oneDNN reads such a weight at two thirds of the rate at which memory can be read, and the rows of a decode step cost
little beside the reading. The C++ here streams through the same bytes, so nothing is kept twice. It is compiled at
start (`compiled`); without it, or where oneDNN chose another order, `packed_linear` goes on with oneDNN alone.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Routine, routine

_FEW = 24  # for more, oneDNN is as fast (measured)
MOST_ROWS = 64  # that the compiled code takes; MOST_ROWS below
_BLOCK = 64  # outputs that lie together
_INPUTS = {torch.float32: 1, torch.bfloat16: 2}  # of these, what lies together for one output
_FUNCTIONS = {torch.float32: "product_float32", torch.bfloat16: "product_bfloat16"}


class FewRows:
    """The product with a weight.

    Args:
        function: the compiled one.
        packed: the weight, in the blocked order.
        shape: its outputs and inputs.
        bias: what is added, if anything is.
    """

    def __init__(self, function: Routine, packed: Tensor, shape: tuple[int, int], bias: Tensor | None) -> None:
        self._function = function
        self._packed = packed
        self.address = torch.ops.mkldnn.data_ptr(packed)
        self._outputs, self._inputs = shape
        self._bias = bias

    @classmethod
    def of(cls, weight: Tensor, packed: Tensor, bias: Tensor | None) -> FewRows | None:
        """Of `weight` [out_features, in_features], which oneDNN made `packed` of; None if it cannot be had."""
        function = _function(weight.dtype)
        if function is None or not _is_blocked(weight, packed):
            return None
        return cls(function, packed, (weight.shape[0], weight.shape[1]), bias)

    def takes(self, rows: Tensor) -> bool:
        """Whether these may be multiplied so. What the compiled code is given it does not check."""
        few = 0 < rows.numel() <= _FEW * self._inputs
        return few and rows.shape[-1] == self._inputs and rows.dtype == self._packed.dtype

    def multiply(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        rows = rows.contiguous()
        product = rows.new_empty(*rows.shape[:-1], self._outputs)
        self._function(
            rows.data_ptr(),
            self.address,
            None if self._bias is None else self._bias.data_ptr(),
            product.data_ptr(),
            rows.numel() // self._inputs,
            self._outputs,
            self._inputs,
            torch.get_num_threads(),
        )
        return product


def _is_blocked(weight: Tensor, packed: Tensor) -> bool:
    """Whether `packed` has the order that the code below reads: [blocks, in_features / n, 64, n], nothing added.

    Compared are the first block, the one in the middle and the last.
    """
    outputs, inputs = weight.shape
    together = _INPUTS[weight.dtype]
    address = torch.ops.mkldnn.data_ptr(packed)
    fits = torch.ops.mkldnn._nbytes(packed) == weight.nbytes and not address % _BLOCK  # noqa: SLF001
    if outputs % _BLOCK or inputs % together or not fits:
        return False
    memory = (ctypes.c_char * weight.nbytes).from_address(address)
    found = torch.frombuffer(memory, dtype=weight.dtype).view(outputs // _BLOCK, -1, _BLOCK, together)
    expected = weight.reshape(outputs // _BLOCK, _BLOCK, -1, together).transpose(1, 2)
    return all(torch.equal(found[block], expected[block]) for block in (0, len(found) // 2, -1))


def _function(dtype: torch.dtype) -> Routine | None:
    pointers, sizes = [ctypes.c_void_p] * 4, [ctypes.c_long] * 3
    return routine("few_rows", _SOURCE, _FUNCTIONS[dtype], *pointers, *sizes, ctypes.c_int)


# Weights are read once, in order, 64 outputs at a time. Up to six rows' sums for 64 outputs fit into the 32 registers
# of AVX-512; more rows take turns at pieces of the weight that stay in the first cache. A word is what one output has
# together: a float32, or two bfloat16.
WORDS = r"""
struct OneFloat32 : Float32 {
  static constexpr long together = 1;
  static floats add(floats sum, words a, words b) { return sum + (floats)a * (floats)b; }
};

struct TwoBFloat16 : BFloat16 {
  static constexpr long together = 2;
  static floats add(floats sum, words a, words b) {
#ifdef __AVX512BF16__
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (floats)(a << 16) * (floats)(b << 16);
    return sum + (floats)(a & 0xffff0000u) * (floats)(b & 0xffff0000u);
#endif
  }
};

"""
"""What is multiplied in one word: `Kind::add` adds the products of two vectors' words to sums."""
TILES = (
    WORDS
    + r"""
constexpr long BLOCK = 64, VECTORS = BLOCK / LANES, TILE = 6, PIECE = 256, MOST_ROWS = 64;

template <class Kind, int ROWS>
void add_tile(const uint32_t* inputs, long stride, const words* weight, long count, floats* sums) {
  floats sum[ROWS][VECTORS];
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) sum[row][v] = sums[row * VECTORS + v];
  for (long k = 0; k < count; k++, weight += VECTORS)
    for (int row = 0; row < ROWS; row++) {
      const words input = words{} + inputs[row * stride + k];
      for (int v = 0; v < VECTORS; v++) sum[row][v] = Kind::add(sum[row][v], weight[v], input);
    }
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) sums[row * VECTORS + v] = sum[row][v];
}

template <class Kind>
void add_rows(const uint32_t* inputs, long stride, const words* weight, long count, floats* sums, long rows) {
  for (long row = 0; row < rows; row += TILE, inputs += TILE * stride, sums += TILE * VECTORS)
    switch (std::min(TILE, rows - row)) {
      case 1: add_tile<Kind, 1>(inputs, stride, weight, count, sums); break;
      case 2: add_tile<Kind, 2>(inputs, stride, weight, count, sums); break;
      case 3: add_tile<Kind, 3>(inputs, stride, weight, count, sums); break;
      case 4: add_tile<Kind, 4>(inputs, stride, weight, count, sums); break;
      case 5: add_tile<Kind, 5>(inputs, stride, weight, count, sums); break;
      case 6: add_tile<Kind, 6>(inputs, stride, weight, count, sums); break;
    }
}
"""
)
"""Any number of rows by a piece of such a weight, added to sums: `add_rows`."""
PRODUCT = (
    TILES
    + r"""
template <class Kind>
void multiply(const void* input, const void* packed, const void* added, const void* residual, void* output, long rows,
              long outputs, long inputs) {
  using number = typename Kind::number;
  const long length = inputs / Kind::together, piece = rows > TILE ? PIECE : length;
  const auto *bias = static_cast<const number*>(added), *before = static_cast<const number*>(residual);
#pragma omp for schedule(static)
  for (long block = 0; block < outputs / BLOCK; block++) {
    floats sums[MOST_ROWS * VECTORS];
    std::fill(sums, sums + rows * VECTORS, floats{});
    const words* weight = static_cast<const words*>(packed) + block * length * VECTORS;
    for (long at = 0; at < length; at += piece)
      add_rows<Kind>(static_cast<const uint32_t*>(input) + at, length, weight + at * VECTORS,
                     std::min(piece, length - at), sums, rows);
    for (long row = 0; row < rows; row++)
      for (long v = 0; v < VECTORS; v++) {
        const long column = block * BLOCK + v * LANES, at = row * outputs + column;
        floats sum = sums[row * VECTORS + v];
        if (bias) sum += read<Kind>(bias + column, LANES);
        if (before) sum = rounded<Kind>(sum) + read<Kind>(before + at, LANES);
        write<Kind>(static_cast<number*>(output) + at, sum, LANES);
      }
  }
}
"""
)
"""`multiply`: rows by a packed weight, a bias, and what is added once that is rounded, by the threads of a region."""
_SOURCE = (
    PRODUCT
    + r"""
#define PRODUCT(name, kind)                                                                                     \
  extern "C" void name(const void* input, const void* packed, const void* bias, void* output, long rows,        \
                       long outputs, long inputs, int threads) {                                                \
    _Pragma("omp parallel num_threads(threads)")                                                                \
    multiply<kind>(input, packed, bias, nullptr, output, rows, outputs, inputs);                                \
  }
PRODUCT(product_float32, OneFloat32)
PRODUCT(product_bfloat16, TwoBFloat16)
"""
)
