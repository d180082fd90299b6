// The formats of GGUF files' blocks, and of weights that AWQ and others have quantized, of LANES outputs side by side.
//
// Order: the first field of all blocks, then the second ones; a field is a float16, four neighbouring bytes that hold
// levels or a float32, or one byte (`Blocks.of` of block_product.py). So a lane decodes the block of its own output,
// and every format is written here as for one block.
//
// A weight of every format is `(level - OFFSET) * scale + least` with a level of at most 8 bits; neighbours share scale
// and least, and one of OFFSET and least is 0.
//
// Source: ggml-common.h and ggml-quants.c of ggml. Numbers of several bytes are little-endian.
#pragma once

#include "simd.h"

namespace blocks {

template <class Vector>
Vector field(const uint8_t* block, long index) {
  Vector numbers;
  std::memcpy(&numbers, block + index * LANES, sizeof numbers);
  return numbers;
}

// Four bytes of each lane's block, from byte `index` on.
inline u32x16 word(const uint8_t* block, long index) { return field<u32x16>(block, index); }

// The number in byte `index` of each lane's block, and the float16 in two bytes.
inline i32x16 byte(const uint8_t* block, long index) { return widen_bytes(field<u8x16>(block, index)); }
inline i32x16 signed_byte(const uint8_t* block, long index) { return widen_bytes(field<i8x16>(block, index)); }
inline f32x16 half(const uint8_t* block, long index) {
  const auto numbers = field<u16x16>(block, index);
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps((__m256i)numbers);
#elif defined(__F16C__)
  __m128i halves[2];
  std::memcpy(halves, &numbers, sizeof halves);
  const __m256 floats[] = {_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])};
  f32x16 both;
  std::memcpy(&both, floats, sizeof both);
  return both;
#else
  const i32x16 bits = __builtin_convertvector(numbers, i32x16), sign = (bits & 0x8000) << 16;
  // The exponent moves from a bias of 15 to one of 127 by a product, which is right for subnormal numbers, too.
  const f32x16 size = (f32x16)((bits & 0x7fff) << 13) * 0x1p112f;
  return (f32x16)((i32x16)size | sign);
#endif
}

// The formats. SIZE: the weights of a block; BYTES: its bytes; GROUP: neighbours that share scale and least;
// `each(block, visit)`: calls visit(index, levels, scale, least) for each group of the block; byte j of levels[w] is
// the level of its input 4 * w + j.

constexpr uint32_t LOWER = 0x0f0f0f0f;
constexpr uint32_t LOWEST = 0x01010101;

// `count` words of 4 bits from byte `index` on: all lower halves, then all upper ones.
inline void nibbles(const uint8_t* block, long index, long count, u32x16* levels) {
  for (long w = 0; w < count; w++) {
    const u32x16 both = word(block, index + 4 * w);
    levels[w] = both & LOWER;
    levels[count + w] = both >> 4 & LOWER;
  }
}

struct Q4_0 {
  static constexpr long SIZE = 32, BYTES = 18, GROUP = 32, OFFSET = 8;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    u32x16 levels[8];
    nibbles(block, 2, 4, levels);
    visit(0, levels, half(block, 0), f32x16{});
  }
};

struct Q4_1 {
  static constexpr long SIZE = 32, BYTES = 20, GROUP = 32, OFFSET = 0;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    u32x16 levels[8];
    nibbles(block, 4, 4, levels);
    visit(0, levels, half(block, 0), half(block, 2));
  }
};

// Add the fifth bits: bit k of `fifths` belongs to input k.
inline void add_fifths(u32x16 fifths, u32x16* levels) {
  // The product moves bit j of four to bit 8 * j.
  for (int w = 0; w < 8; w++) levels[w] |= ((fifths >> 4 * w & 15) * 0x00204081 & LOWEST) << 4;
}

struct Q5_0 {
  static constexpr long SIZE = 32, BYTES = 22, GROUP = 32, OFFSET = 16;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    u32x16 levels[8];
    nibbles(block, 6, 4, levels);
    add_fifths(word(block, 2), levels);
    visit(0, levels, half(block, 0), f32x16{});
  }
};

struct Q5_1 {
  static constexpr long SIZE = 32, BYTES = 24, GROUP = 32, OFFSET = 0;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    u32x16 levels[8];
    nibbles(block, 8, 4, levels);
    add_fifths(word(block, 4), levels);
    visit(0, levels, half(block, 0), half(block, 2));
  }
};

struct Q8_0 {
  static constexpr long SIZE = 32, BYTES = 34, GROUP = 32, OFFSET = 128;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    u32x16 levels[8];
    for (int w = 0; w < 8; w++) levels[w] = word(block, 2 + 4 * w) ^ 0x80808080;  // plus 128
    visit(0, levels, half(block, 0), f32x16{});
  }
};

// Unsigned levels of `BITS`, of which `COUNT` neighbours share a float32 scale and a level that stands for zero, as
// AWQ, GPTQ and compressed-tensors have them. Both come first, then words as in Q4_0 or Q8_0 for each GROUP.
template <long BITS, long COUNT>
struct Grouped {
  static constexpr long SIZE = COUNT, BYTES = 5 + COUNT * BITS / 8, GROUP = 32, OFFSET = 0;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 scale = field<f32x16>(block, 0), least = -(scale * to_float(byte(block, 4)));
    for (long index = 0; index < COUNT / GROUP; index++) {
      u32x16 levels[8];
      const long start = 5 + index * GROUP * BITS / 8;
      if constexpr (BITS == 4)
        nibbles(block, start, 4, levels);
      else
        for (int w = 0; w < 8; w++) levels[w] = word(block, start + 4 * w);
      visit(index, levels, scale, least);
    }
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
    least = -half(block, 2) * to_float(minimum);
  }
};

struct Q4_K {
  static constexpr long SIZE = 256, BYTES = 144, GROUP = 32, OFFSET = 0;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    for (long pair = 0; pair < 4; pair++) {
      const Scales first(block, 2 * pair), second(block, 2 * pair + 1);
      u32x16 levels[16];
      nibbles(block, 16 + pair * 32, 8, levels);
      visit(2 * pair, levels, first.scale, first.least);
      visit(2 * pair + 1, levels + 8, second.scale, second.least);
    }
  }
};

struct Q5_K {
  static constexpr long SIZE = 256, BYTES = 176, GROUP = 32, OFFSET = 0;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    for (int pair = 0; pair < 4; pair++) {
      const Scales first(block, 2 * pair), second(block, 2 * pair + 1);
      u32x16 levels[16];
      nibbles(block, 48 + pair * 32, 8, levels);
      for (int w = 0; w < 8; w++) {
        const u32x16 fifths = word(block, 16 + 4 * w) >> 2 * pair;
        levels[w] |= (fifths & LOWEST) << 4;
        levels[8 + w] |= (fifths >> 1 & LOWEST) << 4;
      }
      visit(2 * pair, levels, first.scale, first.least);
      visit(2 * pair + 1, levels + 8, second.scale, second.least);
    }
  }
};

struct Q6_K {
  static constexpr long SIZE = 256, BYTES = 210, GROUP = 16, OFFSET = 32;
  template <class Visit>
  static void each(const uint8_t* block, Visit visit) {
    const f32x16 factor = half(block, 208);
    // 16 inputs of each of the four quarters of half a block: 64 bytes of lower bits, 32 of upper ones, 8 scales.
    for (long part = 0; part < 4; part++) {
      const long whole = part / 2, start = part % 2, lower = whole * 64 + start * 16;
      u32x16 levels[4][4];
      for (int w = 0; w < 4; w++) {
        const u32x16 one = word(block, lower + 4 * w), other = word(block, lower + 32 + 4 * w);
        const u32x16 upper = word(block, 128 + whole * 32 + start * 16 + 4 * w);
        levels[0][w] = (one & LOWER) | (upper & 3 * LOWEST) << 4;
        levels[1][w] = (other & LOWER) | (upper >> 2 & 3 * LOWEST) << 4;
        levels[2][w] = (one >> 4 & LOWER) | (upper >> 4 & 3 * LOWEST) << 4;
        levels[3][w] = (other >> 4 & LOWER) | (upper >> 6 & 3 * LOWEST) << 4;
      }
      for (long quarter = 0; quarter < 4; quarter++) {
        const f32x16 scale = factor * to_float(signed_byte(block, 192 + whole * 8 + start + quarter * 2));
        visit(whole * 8 + quarter * 2 + start, levels[quarter], scale, f32x16{});
      }
    }
  }
};

}  // namespace blocks
