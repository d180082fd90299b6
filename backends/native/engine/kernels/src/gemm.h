// Skinny GEMM: few rows by a weight in oneDNN's blocked order, [outputs / 64, inputs / PER_WORD, 64] words.
//
// Strategy: the weight is read once, in order, 64 outputs at a time; that stream bounds a decode step. The sums of up
// to six rows for 64 outputs fill 24 of the 32 registers of AVX-512. More rows take turns at pieces of the weight of
// K_PIECE words (64 KB), which stay in the first- or second-level cache between turns.
#pragma once

#include "dot.h"

namespace gemm {

constexpr long BLOCK = 64;               // outputs that lie together
constexpr long VECTORS = BLOCK / LANES;  // vectors of one block
constexpr long TILE = 6;                 // rows whose sums stay in registers
constexpr long K_PIECE = 256;            // words of a weight's block between turns of tiles
constexpr long MAX_ROWS = 64;            // MAX_ROWS of gemv.py

// sums[ROWS, VECTORS] += inputs[ROWS, count words] by weight[count, VECTORS]; `stride` words lie between rows.
template <class Dot, int ROWS>
void add_tile(const uint32_t* inputs, long stride, const u32x16* weight, long count, f32x16* sums) {
  f32x16 sum[ROWS][VECTORS];
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) sum[row][v] = sums[row * VECTORS + v];
  for (long k = 0; k < count; k++, weight += VECTORS)
    for (int row = 0; row < ROWS; row++) {
      const u32x16 input = u32x16{} + inputs[row * stride + k];
      for (int v = 0; v < VECTORS; v++) sum[row][v] = Dot::add(sum[row][v], weight[v], input);
    }
  for (int row = 0; row < ROWS; row++)
    for (int v = 0; v < VECTORS; v++) sums[row * VECTORS + v] = sum[row][v];
}

// The same for any number of rows.
template <class Dot>
void add_rows(const uint32_t* inputs, long stride, const u32x16* weight, long count, f32x16* sums, long rows) {
  for (long row = 0; row < rows; row += TILE, inputs += TILE * stride, sums += TILE * VECTORS)
    switch (std::min(TILE, rows - row)) {
      case 1: add_tile<Dot, 1>(inputs, stride, weight, count, sums); break;
      case 2: add_tile<Dot, 2>(inputs, stride, weight, count, sums); break;
      case 3: add_tile<Dot, 3>(inputs, stride, weight, count, sums); break;
      case 4: add_tile<Dot, 4>(inputs, stride, weight, count, sums); break;
      case 5: add_tile<Dot, 5>(inputs, stride, weight, count, sums); break;
      case 6: add_tile<Dot, 6>(inputs, stride, weight, count, sums); break;
    }
}

// The epilogue of the products in sums[rows, VECTORS]: those of `wide` <= BLOCK outputs from `first` on.
template <class Dtype>
void finish(const f32x16* sums, long rows, long first, long wide, long outputs, const void* bias, const void* residual,
            void* output) {
  using scalar = typename Dtype::scalar;
  const auto *biases = static_cast<const scalar*>(bias), *residuals = static_cast<const scalar*>(residual);
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < wide; at += LANES) {
      const long column = first + at, left = wide - at, place = row * outputs + column;
      f32x16 sum = sums[row * VECTORS + at / LANES];
      if (biases) sum += load<Dtype>(biases + column, left);
      if (residuals) sum = round_to<Dtype>(sum) + load<Dtype>(residuals + place, left);
      store<Dtype>(static_cast<scalar*>(output) + place, sum, left);
    }
}

// output[rows, outputs] = round(input[rows, inputs] by weight + bias) + residual[rows, outputs].
//
// `bias` and `residual` may be null; `residual` may be `output`. Called by every thread of a parallel region.
template <class Dot>
void multiply(const void* input, const void* packed, const void* bias, const void* residual, void* output, long rows,
              long outputs, long inputs) {
  const long length = inputs / Dot::PER_WORD, piece = rows > TILE ? K_PIECE : length;
#pragma omp for schedule(static)
  for (long block = 0; block < outputs / BLOCK; block++) {
    f32x16 sums[MAX_ROWS * VECTORS];
    std::fill(sums, sums + rows * VECTORS, f32x16{});
    const u32x16* weight = static_cast<const u32x16*>(packed) + block * length * VECTORS;
    for (long k = 0; k < length; k += piece)
      add_rows<Dot>(static_cast<const uint32_t*>(input) + k, length, weight + k * VECTORS, std::min(piece, length - k),
                    sums, rows);
    finish<Dot>(sums, rows, block * BLOCK, BLOCK, outputs, bias, residual, output);
  }
}

}  // namespace gemm
