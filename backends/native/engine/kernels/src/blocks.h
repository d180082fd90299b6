// Products with weights in the blocks of GGUF files, by exact activations.
//
// Order: the blocks of LANES outputs stand side by side, byte by byte: the first bytes of all of them, then the second
// ones (`Blocks.of` of block_product.py). So a lane decodes the block of its own output, and every format is written
// here as for one block.
//
// Strategy: weights are made in registers, in float32, as expanding the file would make them. For one row they are
// multiplied as they are made, so that a product takes as long as its blocks take to be read. So it is for up to FEW;
// for more rows a piece of BLOCK outputs is expanded into the cache and multiplied as the packed weights of gemm.h are.
//
// Source of the formats: ggml-common.h and ggml-quants.c of ggml. Numbers of several bytes are little-endian.
#pragma once

#include "gemm.h"

namespace blocks {

using gemm::BLOCK;
using gemm::MAX_ROWS;
using gemm::VECTORS;

constexpr long PIECE = 256;  // inputs that are expanded at a time; a multiple of every format's SIZE
constexpr int CHAINS = 4;    // sums of one row that do not wait for each other
constexpr long FEW = 4;      // rows that are multiplied as weights are made

typedef uint8_t u8x16 __attribute__((vector_size(16)));

inline u8x16 load_bytes(const uint8_t* from) {
  u8x16 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

// Byte `index` of each lane's block.
#ifdef __AVX512F__
inline i32x16 byte(const uint8_t* block, long index) {
  return (i32x16)_mm512_cvtepu8_epi32((__m128i)load_bytes(block + index * LANES));
}
inline i32x16 signed_byte(const uint8_t* block, long index) {
  return (i32x16)_mm512_cvtepi8_epi32((__m128i)load_bytes(block + index * LANES));
}
#else
inline i32x16 byte(const uint8_t* block, long index) {
  return __builtin_convertvector(load_bytes(block + index * LANES), i32x16);
}
inline i32x16 signed_byte(const uint8_t* block, long index) {
  return __builtin_convertvector((i8x16)load_bytes(block + index * LANES), i32x16);
}
#endif

inline f32x16 to_float(i32x16 numbers) { return __builtin_convertvector(numbers, f32x16); }

// The float16 at bytes `index` and `index` + 1 of each lane's block.
#ifdef __AVX512F__
inline f32x16 half(const uint8_t* block, long index) {
  const __m256i lower = _mm256_cvtepu8_epi16((__m128i)load_bytes(block + index * LANES));
  const __m256i upper = _mm256_cvtepu8_epi16((__m128i)load_bytes(block + (index + 1) * LANES));
  return (f32x16)_mm512_cvtph_ps(_mm256_or_si256(lower, _mm256_slli_epi16(upper, 8)));
}
#else
inline f32x16 half(const uint8_t* block, long index) {
  const i32x16 bits = byte(block, index) | byte(block, index + 1) << 8, sign = (bits & 0x8000) << 16;
  // The exponent moves from a bias of 15 to one of 127 by a product, which is right for subnormal numbers, too.
  const f32x16 size = (f32x16)((bits & 0x7fff) << 13) * 0x1p112f;
  return (f32x16)((i32x16)size | sign);
}
#endif

// first + step * the bits of `numbers` that MASK, 2^n - 1 <= 15, names; the product and the sum are exact.
template <int MASK>
f32x16 level(i32x16 numbers, float step = 1, float first = 0) {
#ifdef __AVX512F__
  // Looked up: of a lane's index the instruction reads the lowest 4 bits.
  const f32x16 table = to_float(LANE_INDEX & MASK) * step + first;
  return (f32x16)_mm512_permutexvar_ps((__m512i)numbers, (__m512)table);
#else
  return to_float(numbers & MASK) * step + first;
#endif
}

// The formats. SIZE: the weights of a block; BYTES: its bytes; `each(block, visit)`: calls visit(k, chain, weights) for
// each input k of the block. Neighbouring calls have different chains.

struct Q4_0 {
  static constexpr long SIZE = 32, BYTES = 18;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 0);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const i32x16 levels = byte(block, 2 + k);
      visit(k, k % 2, level<15>(levels, 1, -8) * scale);
      visit(k + 16, 2 + k % 2, level<15>(levels >> 4, 1, -8) * scale);
    }
  }
};

struct Q4_1 {
  static constexpr long SIZE = 32, BYTES = 20;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 0), least = half(block, 2);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const i32x16 levels = byte(block, 4 + k);
      visit(k, k % 2, level<15>(levels) * scale + least);
      visit(k + 16, 2 + k % 2, level<15>(levels >> 4) * scale + least);
    }
  }
};

// Four bytes of each lane's block as one number.
inline i32x16 word(const uint8_t* block, long index) {
  return byte(block, index) | byte(block, index + 1) << 8 | byte(block, index + 2) << 16 | byte(block, index + 3) << 24;
}

struct Q5_0 {
  static constexpr long SIZE = 32, BYTES = 22;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 0);
    const i32x16 fifths = word(block, 2);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const i32x16 levels = byte(block, 6 + k);
      visit(k, k % 2, (level<15>(levels) + level<1>(fifths >> k, 16, -16)) * scale);
      visit(k + 16, 2 + k % 2, (level<15>(levels >> 4) + level<1>(fifths >> (k + 16), 16, -16)) * scale);
    }
  }
};

struct Q5_1 {
  static constexpr long SIZE = 32, BYTES = 24;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 0), least = half(block, 2);
    const i32x16 fifths = word(block, 4);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const i32x16 levels = byte(block, 8 + k);
      visit(k, k % 2, (level<15>(levels) + level<1>(fifths >> k, 16)) * scale + least);
      visit(k + 16, 2 + k % 2, (level<15>(levels >> 4) + level<1>(fifths >> (k + 16), 16)) * scale + least);
    }
  }
};

struct Q8_0 {
  static constexpr long SIZE = 32, BYTES = 34;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 0);
#pragma GCC unroll 32
    for (int k = 0; k < 32; k++) visit(k, k % CHAINS, to_float(signed_byte(block, 2 + k)) * scale);
  }
};

// Of Q4_K and Q5_K: two float16, then 8 scales and 8 minima of 6 bits for 32 weights each.
struct Scales {
  f32x16 scale, least;
  Scales(const uint8_t* block, long index) {
    i32x16 factor, minimum;
    if (index < 4) {
      factor = byte(block, 4 + index) & 63;
      minimum = byte(block, 8 + index) & 63;
    } else {
      const i32x16 lower = byte(block, 8 + index);
      factor = (lower & 15) | byte(block, index) >> 6 << 4;
      minimum = lower >> 4 | byte(block, 4 + index) >> 6 << 4;
    }
    scale = half(block, 0) * to_float(factor);
    least = half(block, 2) * to_float(minimum);
  }
};

struct Q4_K {
  static constexpr long SIZE = 256, BYTES = 144;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    for (long pair = 0; pair < 4; pair++) {
      const Scales first(block, 2 * pair), second(block, 2 * pair + 1);
#pragma GCC unroll 32
      for (int k = 0; k < 32; k++) {
        const i32x16 levels = byte(block, 16 + pair * 32 + k);
        visit(pair * 64 + k, k % 2, level<15>(levels) * first.scale - first.least);
        visit(pair * 64 + 32 + k, 2 + k % 2, level<15>(levels >> 4) * second.scale - second.least);
      }
    }
  }
};

struct Q5_K {
  static constexpr long SIZE = 256, BYTES = 176;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    for (long pair = 0; pair < 4; pair++) {
      const Scales first(block, 2 * pair), second(block, 2 * pair + 1);
#pragma GCC unroll 32
      for (int k = 0; k < 32; k++) {
        const i32x16 levels = byte(block, 48 + pair * 32 + k), fifths = byte(block, 16 + k) >> (int)(2 * pair);
        visit(pair * 64 + k, k % 2, (level<15>(levels) + level<1>(fifths, 16)) * first.scale - first.least);
        visit(pair * 64 + 32 + k, 2 + k % 2,
              (level<15>(levels >> 4) + level<1>(fifths >> 1, 16)) * second.scale - second.least);
      }
    }
  }
};

struct Q6_K {
  static constexpr long SIZE = 256, BYTES = 210;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = half(block, 208);
    // 16 inputs of each of the four quarters of half a block: 64 bytes of lower bits, 32 of upper ones, 8 scales.
    for (long part = 0; part < 4; part++) {
      const long whole = part / 2, start = part % 2 * 16, lower = whole * 64 + start, upper = 128 + whole * 32 + start;
      f32x16 scales[4];
      for (int quarter = 0; quarter < 4; quarter++)
        scales[quarter] = scale * to_float(signed_byte(block, 192 + whole * 8 + part % 2 + quarter * 2));
      const auto weights = [&](i32x16 four, i32x16 two, int quarter) {
        return (level<15>(four) + level<3>(two, 16, -32)) * scales[quarter];
      };
#pragma GCC unroll 16
      for (int k = 0; k < 16; k++) {
        const i32x16 one = byte(block, lower + k), other = byte(block, lower + 32 + k), two = byte(block, upper + k);
        const long at = whole * 128 + start + k;
        visit(at, 0, weights(one, two, 0));
        visit(at + 32, 1, weights(other, two >> 2, 1));
        visit(at + 64, 2, weights(one >> 4, two >> 4, 2));
        visit(at + 96, 3, weights(other >> 4, two >> 6, 3));
      }
    }
  }
};

// weights[inputs, `stride`]: those of LANES outputs, one row of lanes for each input.
template <class Format>
void expand(const uint8_t* block, long inputs, float* weights, long stride) {
  for (long k = 0; k < inputs; k += Format::SIZE, block += Format::BYTES * LANES, weights += Format::SIZE * stride)
    Format::each(block, [&](long at, int, f32x16 made) { store<Float32>(weights + at * stride, made, LANES); });
}

// products[ROWS, VECTORS], the first of each row: activations[ROWS, inputs] by LANES outputs.
template <class Format, int ROWS>
void dot(const uint8_t* block, long inputs, const float* activations, f32x16* products) {
  constexpr int OWN = ROWS == 1 ? CHAINS : CHAINS / 2;
  f32x16 sums[ROWS][OWN] = {};
  for (long k = 0; k < inputs; k += Format::SIZE, block += Format::BYTES * LANES, activations += Format::SIZE)
    Format::each(block, [&](long at, int chain, f32x16 weights) {
      for (int row = 0; row < ROWS; row++) sums[row][chain % OWN] += weights * activations[row * inputs + at];
    });
  for (int row = 0; row < ROWS; row++) {
    for (int chain = 1; chain < OWN; chain++) sums[row][0] += sums[row][chain];
    products[row * VECTORS] = sums[row][0];
  }
}

struct Functions {
  using Dot = void (*)(const uint8_t*, long, const float*, f32x16*);
  Dot one, two, four;  // rows
  void (*expand)(const uint8_t*, long, float*, long);
  long size, bytes;

  // The bytes of `inputs` inputs of LANES outputs.
  long length(long inputs) const { return inputs / size * bytes * LANES; }
};

template <class Format>
constexpr Functions functions_of = {dot<Format, 1>, dot<Format, 2>, dot<Format, 4>,
                                    expand<Format>, Format::SIZE,   Format::BYTES};

// By ggml's number of the type; null for one that is not read. KINDS of block_product.py has the same.
inline const Functions* find(long kind) {
  switch (kind) {
    case 2: return &functions_of<Q4_0>;
    case 3: return &functions_of<Q4_1>;
    case 6: return &functions_of<Q5_0>;
    case 7: return &functions_of<Q5_1>;
    case 8: return &functions_of<Q8_0>;
    case 12: return &functions_of<Q4_K>;
    case 13: return &functions_of<Q5_K>;
    case 14: return &functions_of<Q6_K>;
    default: return nullptr;
  }
}

// Consecutive outputs of one kind.
struct Part {
  const uint8_t* blocks;
  long kind, outputs;
};

// sums[rows, VECTORS] of up to BLOCK outputs, from `group` of LANES outputs on, of which there are `groups`.
inline void multiply_block(const Functions& format, const uint8_t* blocks, long groups, const float* activations,
                           long rows, long inputs, f32x16* sums) {
  const long length = format.length(inputs);
  std::fill(sums, sums + rows * VECTORS, f32x16{});
  if (rows <= FEW) {
    for (long group = 0; group < groups; group++, blocks += length, sums++) {
      const auto dot = rows == 4 ? format.four : rows == 1 ? format.one : format.two;
      dot(blocks, inputs, activations, sums);
      if (rows == 3) format.one(blocks, inputs, activations + 2 * inputs, sums + 2 * VECTORS);
    }
    return;
  }
  alignas(64) float weights[PIECE * BLOCK];
  if (groups < VECTORS) std::fill_n(weights, PIECE * BLOCK, 0.0f);
  for (long k = 0; k < inputs; k += PIECE) {
    const long count = std::min(PIECE, inputs - k);
    for (long group = 0; group < groups; group++)
      format.expand(blocks + group * length + format.length(k), count, weights + group * LANES, BLOCK);
    gemm::add_rows<DotFloat32>(reinterpret_cast<const uint32_t*>(activations) + k, inputs,
                               reinterpret_cast<const u32x16*>(weights), count, sums, rows);
  }
}

// output[rows, outputs] = round(activations[rows, inputs] by the weight + bias) + residual[rows, outputs].
//
// The weight's outputs are those of `count` parts, one after the other. `bias` and `residual` may be null; `residual`
// may be `output`. Called by every thread of a parallel region.
template <class Dtype>
void multiply(const float* activations, const Part* parts, long count, const void* bias, const void* residual,
              void* output, long rows, long inputs) {
  long outputs = 0, first = 0;
  for (const Part* part = parts; part < parts + count; part++) outputs += part->outputs;
  for (const Part* part = parts; part < parts + count; first += part++->outputs) {
    const Functions& format = *find(part->kind);
#pragma omp for schedule(static) nowait
    for (long start = 0; start < part->outputs; start += BLOCK) {
      f32x16 sums[MAX_ROWS * VECTORS];
      const long wide = std::min(BLOCK, part->outputs - start);
      multiply_block(format, part->blocks + start / LANES * format.length(inputs), (wide + LANES - 1) / LANES,
                     activations, rows, inputs, sums);
      gemm::finish<Dtype>(sums, rows, first + start, wide, outputs, bias, residual, output);
    }
  }
#pragma omp barrier
}

}  // namespace blocks
