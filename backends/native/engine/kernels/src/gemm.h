// Skinny GEMM: few rows by a weight in oneDNN's blocked order, [outputs / 64, inputs / PER_WORD, 64] words. The inputs
// of a block are padded to a multiple of 16 words, which are not read.
//
// Strategy: the weight is read once, in order, 64 outputs at a time; that stream bounds a decode step. The sums of up
// to six rows for 64 outputs fill 24 of the 32 registers of AVX-512; CPUs with less room for sums take as many outputs
// at a time as they can, in turns at pieces of SHORT_PIECE words. More rows take turns at pieces of the weight of
// K_PIECE words (8 KB), which stay in the first-level cache between turns. Memory must not rest meanwhile, so every
// turn prefetches its share of the next piece: a CPU's own prefetcher stops when nothing new is read.
//
// Where a CPU multiplies pairs of bfloat16 slowly or not at all, products are computed in float32. For several tiles
// both factors are widened before: the rows once, the weight a piece at a time. A row's sums are the same either way.
#pragma once

#include <type_traits>
#include <vector>

#include "dot.h"
#include "tiles.h"

namespace gemm {

constexpr long BLOCK = 64;               // outputs that lie together
constexpr long VECTORS = BLOCK / LANES;  // vectors of one block
constexpr long PADDED = 16;              // words to whose multiple a block's inputs are padded
constexpr long TILE = 6;                 // rows whose sums stay in registers
constexpr long K_PIECE = 32;             // words of a weight's block between turns of tiles
constexpr long SHORT_PIECE = 16;         // the same for up to SHORT_ROWS rows
constexpr long SHORT_ROWS = 10;          // two tiles, which leave memory no time to rest between short turns
constexpr long LINE = sizeof(u32x16);    // bytes of a cache line
constexpr long WIDENED_PIECE = 32;       // the same where the weight is widened, which doubles it (16 KB)
constexpr long DISTANCE = 8192;          // bytes that a single turn prefetches ahead
constexpr long MAX_ROWS = 64;            // MAX_ROWS of gemv.py

constexpr int SUMS = REGISTER == 32 ? 12 : 24;           // how many of the CPU's registers hold sums
constexpr int PARTS = BLOCK * sizeof(float) / REGISTER;  // registers of one block

// How many registers of a block a tile takes at a time, so that the sums stay in registers.
constexpr int strip(int rows) {
  int wide = PARTS;
  while (rows * wide > SUMS) wide /= 2;
  return wide;
}

// sums[ROWS, PARTS] += inputs[ROWS, count words] by weight[count, PARTS]; `stride` words lie between rows.
//
// Prefetches `lines` cache lines from `ahead` on, evenly over the words: memory rests between bursts. `EACH`: how many
// beside each word where that is a whole number, else 0; a loop for them would take longer than the products.
template <class Dot, int ROWS, int EACH>
void add_tile(const uint32_t* inputs, long stride, const words* weight, long count, floats* sums, const char* ahead,
              long lines) {
  constexpr int WIDE = strip(ROWS);
  long due = 0;  // in parts of a line, `count` of which are one
  for (int first = 0; first < PARTS; first += WIDE) {
    floats sum[ROWS][WIDE];
    for (int row = 0; row < ROWS; row++)
      for (int part = 0; part < WIDE; part++) sum[row][part] = sums[row * PARTS + first + part];
    for (long k = 0; k < count; k++) {
      if (first == 0) {
        for (int line = 0; line < EACH; line++, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
        if (!EACH)
          for (due += lines; due >= count; due -= count, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
      }
      for (int row = 0; row < ROWS; row++) {
        const words input = words{} + inputs[row * stride + k];
        for (int part = 0; part < WIDE; part++)
          sum[row][part] = Dot::add(sum[row][part], weight[k * PARTS + first + part], input);
      }
    }
    for (int row = 0; row < ROWS; row++)
      for (int part = 0; part < WIDE; part++) sums[row * PARTS + first + part] = sum[row][part];
  }
}

// sums[rows, VECTORS] += inputs[rows, count words] by weight[count, VECTORS], in tiles of nearly equal size.
//
// Meanwhile the `coming` cache lines from `ahead` on are prefetched.
template <class Dot>
void add_rows(const uint32_t* inputs, long stride, const u32x16* weight, long count, f32x16* sums, long rows,
              const u32x16* ahead = nullptr, long coming = 0) {
  for (long tiles = (rows + TILE - 1) / TILE; tiles; tiles--) {
    const long tile = (rows + tiles - 1) / tiles, lines = (coming + tiles - 1) / tiles;
    const auto* from = reinterpret_cast<const words*>(weight);
    const auto* next = reinterpret_cast<const char*>(ahead);
    auto* to = reinterpret_cast<floats*>(sums);
    const auto add = [&](auto tiled) {
      constexpr int ROWS = decltype(tiled)::value;
      // Here the loop is faster: one and two rows run so far ahead of their products that they get in memory's way.
      if constexpr (ROWS <= 2) return add_tile<Dot, ROWS, 0>(inputs, stride, from, count, to, next, lines);
      const auto with = lines == VECTORS * count       ? add_tile<Dot, ROWS, VECTORS>
                        : 2 * lines == VECTORS * count ? add_tile<Dot, ROWS, VECTORS / 2>
                                                       : add_tile<Dot, ROWS, 0>;
      with(inputs, stride, from, count, to, next, lines);
    };
    switch (tile) {
      case 1: add(std::integral_constant<int, 1>()); break;
      case 2: add(std::integral_constant<int, 2>()); break;
      case 3: add(std::integral_constant<int, 3>()); break;
      case 4: add(std::integral_constant<int, 4>()); break;
      case 5: add(std::integral_constant<int, 5>()); break;
      case 6: add(std::integral_constant<int, 6>()); break;
    }
    rows -= tile, inputs += tile * stride, sums += tile * VECTORS;
    ahead += lines, coming -= lines;
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

// Whether products of bfloat16 are computed in float32: Intel's instruction for pairs of bfloat16 (AVX512-BF16) makes
// half as many products a second as the one for float32 (measured), AMD's more.
inline bool multiplies_in_float32() {
#ifdef __AVX512BF16__
  return __builtin_cpu_is("intel");
#else
  return true;
#endif
}

// numbers[count], in float32.
template <class Dtype>
void widen(const void* numbers, float* widened, long count) {
  const auto* from = static_cast<const typename Dtype::scalar*>(numbers);
  for (long at = 0; at < count; at += LANES)
    store<Float32>(widened + at, load<Dtype>(from + at, count - at), count - at);
}

// widened[2 * count, VECTORS] = weight[count, VECTORS], whose words are pairs of bfloat16.
inline void widen_pairs(const u32x16* weight, f32x16* widened, long count) {
  for (long k = 0; k < count; k++, widened += VECTORS)
    for (long end = VECTORS; end; end--, weight++, widened++) {
      widened[0] = (f32x16)(*weight << 16);
      widened[VECTORS] = (f32x16)(*weight & 0xffff0000u);
    }
}

// output[rows, outputs] = round(input[rows, inputs] by weight + bias) + residual[rows, outputs].
//
// The weight's last block may be padded. `bias` and `residual` may be null; `residual` may be `output`. Called by every
// thread of a parallel region.
template <class Dot>
void multiply(const void* input, const void* packed, const void* bias, const void* residual, void* output, long rows,
              long outputs, long inputs) {
#ifdef __AMX_BF16__
  if constexpr (Dot::PER_WORD > 1)
    if (tiles::available())
      return tiles::multiply<BLOCK, MAX_ROWS>(input, packed, rows, outputs, inputs,
                                              [&](const f32x16* sums, long first, long wide) {
                                                finish<Dot>(sums, rows, first, wide, outputs, bias, residual, output);
                                              });
#endif
  const bool in_float32 = Dot::PER_WORD > 1 && multiplies_in_float32(), widens = in_float32 && rows > TILE;
  const long length = inputs / Dot::PER_WORD, padded = (length + PADDED - 1) / PADDED * PADDED;
  const bool shorter = rows <= SHORT_ROWS && !widens;
  const long piece = widens                               ? WIDENED_PIECE
                     : !shorter                           ? K_PIECE
                     : rows > TILE || strip(rows) < PARTS ? SHORT_PIECE
                                                          : length;
  // Every thread widens all rows, which takes less time than to wait for the others.
  static thread_local std::vector<float> widened;
  if (widens) {
    widened.resize(rows * inputs);
    widen<Dot>(input, widened.data(), rows * inputs);
  }
#pragma omp for schedule(static)
  for (long first = 0; first < outputs; first += BLOCK) {
    f32x16 sums[MAX_ROWS * VECTORS];
    std::fill(sums, sums + rows * VECTORS, f32x16{});
    const u32x16* weight = static_cast<const u32x16*>(packed) + first / BLOCK * padded * VECTORS;
    for (long k = 0; k < length; k += piece) {
      const long count = std::min(piece, length - k);
      const u32x16 *now = weight + k * VECTORS, *ahead = now + (shorter ? DISTANCE / LINE : count * VECTORS);
      if (widens) {
        f32x16 floats[2 * WIDENED_PIECE * VECTORS];
        widen_pairs(now, floats, count);
        add_rows<DotFloat32>(reinterpret_cast<const uint32_t*>(widened.data()) + 2 * k, inputs,
                             reinterpret_cast<const u32x16*>(floats), 2 * count, sums, rows, ahead, count * VECTORS);
      } else {
        const auto add = in_float32 ? add_rows<WideDotBFloat16> : add_rows<Dot>;
        add(static_cast<const uint32_t*>(input) + k, length, now, count, sums, rows, ahead, count * VECTORS);
      }
    }
    finish<Dot>(sums, rows, first, std::min(BLOCK, outputs - first), outputs, bias, residual, output);
  }
}

}  // namespace gemm
