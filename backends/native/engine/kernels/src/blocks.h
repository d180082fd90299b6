// Products with weights in the blocks of GGUF files.
//
// Strategy: products are sums of levels times activations, multiplied once by the scale that neighbouring weights share
// (block_formats.h). Levels are read and unpacked once for all rows. Where the CPU multiplies bytes, an activation is
// three of them: an integer of 24 bits times a factor that 32 neighbours share, which is as exact as float32 is beside
// the largest of them; the sums of their products are exact. A row's product does not depend on how many rows there
// are.
#pragma once

#include <functional>

#include "block_formats.h"
#include "gemm.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define MULTIPLIES_BYTES
#include <immintrin.h>
#endif

namespace blocks {

using gemm::BLOCK;
using gemm::MAX_ROWS;
using gemm::VECTORS;

constexpr long PIECE = 256;  // inputs that are expanded at a time; a multiple of every format's SIZE
constexpr long CACHE_LINE = 64;
constexpr long AHEAD = 4096;  // bytes between what is read and what is prefetched; a CPU itself stops at a page's end

// The levels in byte `index` of each lane, less OFFSET.
template <class Format>
inline __attribute__((always_inline)) f32x16 level(u32x16 words, int index) {
  return to_float((i32x16)(words >> 8 * index & 255) - (int)Format::OFFSET);
}

// The same times PLACES[index]. It saves the shift, which takes as long as the product does.
constexpr long PLACES[] = {1, 1 << 8, 1 << 16, 1};
template <class Format>
inline __attribute__((always_inline)) f32x16 placed_level(u32x16 words, int index) {
  const u32x16 placed = index == 3 ? words >> 24 : words & 255 * (uint32_t)PLACES[index];
  return to_float((i32x16)placed - (int)(Format::OFFSET * PLACES[index]));
}

// weights[inputs, `stride`]: those of LANES outputs, one row of lanes for each input.
template <class Format>
void expand(const uint8_t* block, long inputs, float* weights, long stride) {
  for (long k = 0; k < inputs; k += Format::SIZE, block += Format::BYTES * LANES)
    Format::each(block, [&](long index, const u32x16* levels, f32x16 scale, f32x16 least) {
      float* own = weights + (k + index * Format::GROUP) * stride;
      for (int at = 0; at < Format::GROUP; at++)
        store<Float32>(own + at * stride, level<Format>(levels[at / 4], at % 4) * scale + least, LANES);
    });
}

// Neighbouring activations of a row, as they are multiplied.
struct Activations {
  static constexpr long COUNT = 32;
#ifdef MULTIPLIES_BYTES
  // Activation k is `factor` * (65536 * bytes[0][k] + 256 * bytes[1][k] + bytes[2][k]).
  int8_t bytes[3][COUNT];
  int32_t totals[3][2];  // of the first half, of the second one, of both: of bytes[0], and of the others together
  float factor;
#else
  float numbers[COUNT];  // divided by PLACES[k % 4]
#endif
  float sums[3];  // of the first half, of the second one, of both

  template <class Dtype>
  void set(const typename Dtype::scalar* from) {
    const f32x16 halves[] = {load<Dtype>(from, LANES), load<Dtype>(from + LANES, LANES)};
    sums[0] = sum_lanes(halves[0]), sums[1] = sum_lanes(halves[1]), sums[2] = sums[0] + sums[1];
#ifdef MULTIPLIES_BYTES
    // If one of them is no number, or infinite, then neither `factor` nor the product is a number.
    const float inverse = std::min(HIGHEST / std::max(largest(halves[0]), largest(halves[1])), 0x1p126f);
    factor = 1 / inverse;
    for (int half = 0; half < 2; half++) {
      const f32x16 scaled = halves[half] * inverse;
      i32x16 whole = __builtin_convertvector(scaled + (scaled < 0.0f ? f32x16{} - 0.5f : f32x16{} + 0.5f), i32x16);
      const i32x16 highest = (((whole + 128) >> 8) + 128) >> 8;
      totals[half][0] = reduce(highest, std::plus<i32x16>());
      totals[half][1] = reduce(whole - highest * 65536, std::plus<i32x16>());
      for (int place = 2; place >= 0; place--, whole = (whole + 128) >> 8) {
        const i8x16 lowest = __builtin_convertvector(whole, i8x16);
        std::memcpy(bytes[place] + half * LANES, &lowest, sizeof lowest);
      }
    }
    for (int place = 0; place < 2; place++) totals[2][place] = totals[0][place] + totals[1][place];
#else
    constexpr float one = 1, second = 1.0f / PLACES[1], third = 1.0f / PLACES[2];
    constexpr f32x16 by = {one, second, third, one, one, second, third, one,
                           one, second, third, one, one, second, third, one};
    const f32x16 placed[] = {halves[0] * by, halves[1] * by};
    std::memcpy(numbers, placed, sizeof placed);
#endif
  }

#ifdef MULTIPLIES_BYTES
  // Three signed bytes hold 127 * 65536 + 127 * 256 + 127 at most; one less, since a product is rounded.
  static constexpr float HIGHEST = 8355711 - 1;

  // All lanes as one number, by halves, quarters and so on.
  template <class Operation>
  static int32_t reduce(i32x16 numbers, Operation of) {
    for (int distance = LANES / 2; distance; distance /= 2)
      numbers = of(numbers, __builtin_shuffle(numbers, LANE_INDEX ^ distance));
    return numbers[0];
  }

  static float largest(f32x16 numbers) {
    return bits_to_float(
        reduce((i32x16)numbers & 0x7fffffff, [](i32x16 one, i32x16 other) { return one > other ? one : other; }));
  }
#endif
};

// Calls visit(the first input, levels, scale, least) for each group of LANES outputs.
template <class Format, class Visit>
void each_group(const uint8_t* block, long inputs, Visit visit) {
  for (long k = 0; k < inputs; k += Format::SIZE, block += Format::BYTES * LANES) {
    for (long byte = 0; byte < Format::BYTES * LANES; byte += CACHE_LINE) __builtin_prefetch(block + AHEAD + byte);
    Format::each(block, [&](long index, const u32x16* levels, f32x16 scale, f32x16 least) {
      visit(k + index * Format::GROUP, levels, scale, least);
    });
  }
}

// A group's place among the inputs of its `Activations`: where it starts, and which of their sums it needs.
template <class Format>
struct Place {
  static constexpr bool WHOLE = Format::GROUP == Activations::COUNT;
  long start, part;
  explicit Place(long input) : start(WHOLE ? 0 : input % Activations::COUNT), part(WHOLE ? 2 : start / Format::GROUP) {}
};

#ifdef MULTIPLIES_BYTES
// sums + the products of four unsigned bytes of each lane by the four signed ones at `numbers`.
inline i32x16 add_products(i32x16 sums, u32x16 levels, const int8_t* numbers) {
  int32_t four;
  std::memcpy(&four, numbers, sizeof four);
#ifdef __AVX512VNNI__
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)levels, _mm512_set1_epi32(four));
#else
  __m256i own[2], bytes[2];
  std::memcpy(own, &sums, sizeof own);
  std::memcpy(bytes, &levels, sizeof bytes);
  for (int half = 0; half < 2; half++)
    own[half] = _mm256_dpbusd_avx_epi32(own[half], bytes[half], _mm256_set1_epi32(four));
  std::memcpy(&sums, own, sizeof sums);
  return sums;
#endif
}

constexpr long TILE = 4;  // rows whose sums and a group's levels stay in registers

// products[COUNT, VECTORS], the first of each row: activations[inputs / COUNT, `rows`] by LANES outputs. A product of
// bytes waits for the one before it, so rows take turns: one row alone takes twice its share of four.
template <class Format, int COUNT>
void dot_tile(const uint8_t* block, long inputs, const Activations* activations, long rows, f32x16* products) {
  constexpr int OFFSET = Format::OFFSET;
  f32x16 totals[COUNT] = {};
  each_group<Format>(block, inputs, [&](long at, const u32x16* levels, f32x16 scale, f32x16 least) {
    const Activations* by = activations + at / Activations::COUNT * rows;
    const Place<Format> place(at);
    i32x16 sums[COUNT][3] = {};
#pragma GCC unroll 8
    for (int w = 0; w < Format::GROUP / 4; w++)
      for (int row = 0; row < COUNT; row++)
        for (int byte = 0; byte < 3; byte++)
          sums[row][byte] = add_products(sums[row][byte], levels[w], by[row].bytes[byte] + place.start + 4 * w);
    for (int row = 0; row < COUNT; row++) {
      i32x16 upper = sums[row][0], lower = (sums[row][1] << 8) + sums[row][2];
      if constexpr (OFFSET)
        upper -= by[row].totals[place.part][0] * OFFSET, lower -= by[row].totals[place.part][1] * OFFSET;
      else
        totals[row] += least * by[row].sums[place.part];
      // `upper` has at most 21 bits, `lower` at most 29: only the last bits of that are rounded.
      totals[row] += (to_float(upper) * 65536 + to_float(lower)) * (scale * by[row].factor);
    }
  });
  for (int row = 0; row < COUNT; row++) products[row * VECTORS] = totals[row];
}

// The same for all `rows`.
template <class Format>
void dot(const uint8_t* block, long inputs, const Activations* activations, long rows, f32x16* products) {
  for (long row = 0; row < rows; row += TILE, activations += TILE, products += TILE * VECTORS)
    switch (std::min(TILE, rows - row)) {
      case 1: dot_tile<Format, 1>(block, inputs, activations, rows, products); break;
      case 2: dot_tile<Format, 2>(block, inputs, activations, rows, products); break;
      case 3: dot_tile<Format, 3>(block, inputs, activations, rows, products); break;
      case 4: dot_tile<Format, 4>(block, inputs, activations, rows, products); break;
    }
}
#else
constexpr long TILE = 3;  // rows whose sums stay in registers

// products[ROWS, VECTORS], the first of each row, += by[ROWS] by a group of weights; `numbers` are its placed
// levels. Even and odd inputs have sums of their own: a sum waits for the one before it.
template <class Format, int ROWS>
void add_numbers(const f32x16* numbers, const Activations* by, Place<Format> place, f32x16 scale, f32x16 least,
                 f32x16* products) {
  const auto* weights = reinterpret_cast<const floats*>(numbers);
  const auto *scales = reinterpret_cast<const floats*>(&scale), *leasts = reinterpret_cast<const floats*>(&least);
  floats sums[2][ROWS][REGISTERS] = {};
#pragma GCC unroll 2
  for (int pair = 0; pair < Format::GROUP; pair += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
      for (int part = 0; part < REGISTERS; part++) {
        const floats weight = weights[(pair + odd) * REGISTERS + part];
        for (int row = 0; row < ROWS; row++) sums[odd][row][part] += weight * by[row].numbers[place.start + pair + odd];
      }
  for (int row = 0; row < ROWS; row++)
    for (int part = 0; part < REGISTERS; part++) {
      floats& product = reinterpret_cast<floats*>(products + row * VECTORS)[part];
      floats total = product;
      if constexpr (!Format::OFFSET) total += leasts[part] * by[row].sums[place.part];
      product = total + (sums[0][row][part] + sums[1][row][part]) * scales[part];
    }
}

// The same for few rows, which multiply each level as it is unpacked: storing the levels takes longer than the
// products.
template <class Format, int ROWS>
void add_levels(const u32x16* levels, const Activations* by, Place<Format> place, f32x16 scale, f32x16 least,
                f32x16* products) {
  f32x16 sums[2][ROWS] = {};
#pragma GCC unroll 32
  for (int k = 0; k < Format::GROUP; k++) {
    const f32x16 number = placed_level<Format>(levels[k / 4], k % 4);
    for (int row = 0; row < ROWS; row++) sums[k % 2][row] += number * by[row].numbers[place.start + k];
  }
  for (int row = 0; row < ROWS; row++) {
    f32x16 total = products[row * VECTORS];
    if constexpr (!Format::OFFSET) total += least * by[row].sums[place.part];
    products[row * VECTORS] = total + (sums[0][row] + sums[1][row]) * scale;
  }
}

// products[ROWS, VECTORS], the first of each row, += activations[inputs / COUNT, ROWS] by LANES outputs.
template <class Format, int ROWS>
void dot_few(const uint8_t* block, long inputs, const Activations* activations, f32x16* products) {
  each_group<Format>(block, inputs, [&](long at, const u32x16* levels, f32x16 scale, f32x16 least) {
    const Activations* by = activations + at / Activations::COUNT * ROWS;
    add_levels<Format, ROWS>(levels, by, Place<Format>(at), scale, least, products);
  });
}

// The same for `rows`.
template <class Format>
void dot(const uint8_t* block, long inputs, const Activations* activations, long rows, f32x16* products) {
  if (rows == 1) return dot_few<Format, 1>(block, inputs, activations, products);
  if (rows == 2) return dot_few<Format, 2>(block, inputs, activations, products);
  each_group<Format>(block, inputs, [&](long at, const u32x16* levels, f32x16 scale, f32x16 least) {
    const Activations* by = activations + at / Activations::COUNT * rows;
    const Place<Format> place(at);
    f32x16 numbers[Format::GROUP];
#pragma GCC unroll 32
    for (int k = 0; k < Format::GROUP; k++) numbers[k] = placed_level<Format>(levels[k / 4], k % 4);
    f32x16* to = products;
    long left = rows;
    for (; left >= TILE; left -= TILE, by += TILE, to += TILE * VECTORS)
      add_numbers<Format, TILE>(numbers, by, place, scale, least, to);
    if (left == 2) add_numbers<Format, 2>(numbers, by, place, scale, least, to);
    if (left == 1) add_numbers<Format, 1>(numbers, by, place, scale, least, to);
  });
}
#endif

struct Functions {
  void (*dot)(const uint8_t*, long, const Activations*, long, f32x16*);
  void (*expand)(const uint8_t*, long, float*, long);
  long size, bytes;

  // The bytes of `inputs` inputs of LANES outputs.
  long length(long inputs) const { return inputs / size * bytes * LANES; }
};

template <class Format>
constexpr Functions functions_of = {dot<Format>, expand<Format>, Format::SIZE, Format::BYTES};

// By ggml's number of the type, or a number below zero for one that is not ggml's; null for one that is not read. KINDS
// of block_product.py has the same.
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
    case -1: return &functions_of<Grouped<4, 32>>;
    case -2: return &functions_of<Grouped<4, 128>>;
    case -3: return &functions_of<Grouped<8, 32>>;
    case -4: return &functions_of<Grouped<8, 128>>;
    default: return nullptr;
  }
}

// Consecutive outputs of one kind.
struct Part {
  const uint8_t* blocks;
  long kind, outputs;
};

// output[rows, outputs] = round(input[rows, inputs] by the weight + bias) + residual[rows, outputs].
//
// The weight's outputs are those of `count` parts, one after the other. `bias` and `residual` may be null; `residual`
// may be `output`. `room` holds rows * inputs / COUNT activations. Called by every thread of a parallel region.
template <class Dtype>
void multiply(const void* input, const Part* parts, long count, const void* bias, const void* residual, void* output,
              Activations* room, long rows, long inputs) {
  const long own = rows * inputs / Activations::COUNT;
#pragma omp for schedule(static)
  for (long at = 0; at < own; at++)
    room[at].set<Dtype>(static_cast<const typename Dtype::scalar*>(input) +
                        (at % rows * inputs + at / rows * Activations::COUNT));
  long outputs = 0, first = 0;
  for (const Part* part = parts; part < parts + count; part++) outputs += part->outputs;
  for (const Part* part = parts; part < parts + count; first += part++->outputs) {
    const Functions& format = *find(part->kind);
    const long length = format.length(inputs);
#pragma omp for schedule(static) nowait
    for (long start = 0; start < part->outputs; start += BLOCK) {
      f32x16 sums[MAX_ROWS * VECTORS];
      std::fill(sums, sums + rows * VECTORS, f32x16{});
      const long wide = std::min(BLOCK, part->outputs - start);
      for (long at = 0; at < wide; at += LANES)
        format.dot(part->blocks + (start + at) / LANES * length, inputs, room, rows, sums + at / LANES);
      gemm::finish<Dtype>(sums, rows, first + start, wide, outputs, bias, residual, output);
    }
  }
#pragma omp barrier
}

}  // namespace blocks
