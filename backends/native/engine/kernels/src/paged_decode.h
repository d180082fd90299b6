// Attention of sequences in decode (one query token each) over the paged cache, where the pages lie.
//
// Strategy: a task is one sequence and some of the query heads that share a key head (grouped-query attention),
// so a key is loaded once for all of them. Keys are taken KEYS at a time: all their scores, then the online softmax
// (FlashAttention's running maximum and sum), then the values. Pages are prefetched while their addresses are computed.
#pragma once

#include "dot.h"

namespace paged_decode {

constexpr long KEYS = 128;
constexpr long MAX_WIDTH = 512;  // of a key or a value; MAX_WIDTH of cpu_decode.py
constexpr long VECTORS = MAX_WIDTH / LANES;
#ifdef __AVX512F__
constexpr int SUMS = 24;  // vectors of sums that stay in the CPU's registers
#else
constexpr int SUMS = 6;
#endif

// So many keys, or vectors of a value, are taken at a time that the sums of `heads` stay in registers.
constexpr int wide(int heads, int most) {
  while (most > 1 && heads * most > SUMS) most /= 2;
  return most;
}

// `table` is the width of the block tables, `block` the tokens of a page, `window` the sliding window (0: none); the
// strides are the queries', in numbers.
struct Sizes {
  long sequences, table, block, window, heads, key_heads, key_width, value_width, token_stride, head_stride, threads;
};

// Shuffles that pick the first halves, quarters, eighths and sixteenths of two vectors; see add_across.
constexpr i32x16 FIRST[] = {{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
                            {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27},
                            {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29},
                            {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}};

// Horizontal sums of 2^LEVEL vectors at once: vector i's sum ends in lanes i * 16 / 2^LEVEL and following. At each
// level two vectors are folded into one, so 16 sums take 15 additions instead of 16 times 4. Each of `vectors` may be
// 2^DONE vectors that are folded already.
template <int LEVEL, int DONE = 0>
inline f32x16 add_across(const f32x16* vectors) {
  if constexpr (LEVEL == DONE)
    return vectors[0];
  else {
    const f32x16 a = add_across<LEVEL - 1, DONE>(vectors);
    const f32x16 b = add_across<LEVEL - 1, DONE>(vectors + (1 << (LEVEL - DONE - 1)));
    const i32x16 first = FIRST[LEVEL - 1], second = first + (int)(LANES >> LEVEL);
    return __builtin_shuffle(a, b, first) + __builtin_shuffle(a, b, second);
  }
}

// The sums of LANES vectors' lanes, in two steps: `fold` makes FOLDS registers of WIDE vectors, `sums_of` the sums of
// all those registers.
#ifdef __AVX512F__
template <int WIDE>
constexpr int FOLDS = 1;
template <int WIDE>
void fold(const floats (*vectors)[REGISTERS], floats* folded) {
  *folded = add_across<__builtin_ctz(WIDE)>(*vectors);
}
template <int WIDE>
f32x16 sums_of(const floats* folded) {
  return add_across<4, __builtin_ctz(WIDE)>(folded);
}
#else
// Without AVX-512 a shuffle of two vectors of 64 bytes is many instructions.
template <int WIDE>
constexpr int FOLDS = WIDE;
template <int WIDE>
void fold(const floats (*vectors)[REGISTERS], floats* folded) {
  for (int j = 0; j < WIDE; j++) {
    folded[j] = vectors[j][0];
    for (int part = 1; part < REGISTERS; part++) folded[j] += vectors[j][part];
  }
}
template <int WIDE>
f32x16 sums_of(const floats* folded) {
  f32x16 sums;
#ifdef __AVX2__
  for (int half = 0; half < 2; half++, folded += LANES / 2) {
    const auto pairs = [folded](int j) { return _mm256_hadd_ps((__m256)folded[j], (__m256)folded[j + 1]); };
    const __m256 lower = _mm256_hadd_ps(pairs(0), pairs(2)), upper = _mm256_hadd_ps(pairs(4), pairs(6));
    const floats own =
        (floats)(_mm256_permute2f128_ps(lower, upper, 0x20) + _mm256_permute2f128_ps(lower, upper, 0x31));
    std::memcpy(reinterpret_cast<char*>(&sums) + half * sizeof own, &own, sizeof own);
  }
#else
  for (int j = 0; j < LANES; j++) {
    sums[j] = 0;
    for (int lane = 0; lane < REGISTER / (int)sizeof(float); lane++) sums[j] += folded[j][lane];
  }
#endif
  return sums;
}
#endif

// LANES words at `from`, of which `left` numbers remain; the others are 0.
template <class Dot>
u32x16 load_words(const typename Dot::scalar* from, long left) {
  u32x16 values = {};
  if (left >= LANES * Dot::PER_WORD)
    std::memcpy(&values, from, sizeof values);
  else
    std::memcpy(&values, from, left * sizeof *from);
  return values;
}

// How keys and values lie on pages, and how queries are multiplied with them; scalar: a number of queries and outputs.

// In the queries' own dtype.
template <class Queries>
struct SameDtype {
  using Dot = Queries;
  using scalar = typename Queries::scalar;
  using stored = scalar;
  static constexpr bool SCALED = false;
  static constexpr long HEADS = REGISTER == 64 ? 8 : 4;  // the most of a task
  static u32x16 query(const scalar* from, long left) { return load_words<Queries>(from, left); }
  static u32x16 words(const stored* from, long left) { return load_words<Queries>(from, left); }
  static f32x16 numbers(const stored* from, long left) { return load<Queries>(from, left); }
  using Output = Queries;
};

// In 8 bits, with a factor for each key and value of a head; they are multiplied in float32.
template <class Queries>
struct EightBits {
  using Dot = DotFloat32;
  using scalar = typename Queries::scalar;
  using stored = int8_t;
  static constexpr bool SCALED = true;
  static constexpr long HEADS = 4;  // keys are widened for each: more would only take GCC longer
  static u32x16 query(const scalar* from, long left) { return (u32x16)load<Queries>(from, left); }
  static u32x16 words(const stored* from, long left) { return (u32x16)numbers(from, left); }
  static f32x16 numbers(const stored* from, long left) {
    i8x16 values = {};
    if (left >= LANES)
      std::memcpy(&values, from, sizeof values);
    else
      std::memcpy(&values, from, left);
    return to_float(widen_bytes(values));
  }
  using Output = Queries;
};

// The pools of a layer, from one key head on; `key_scales` and `value_scales` for 8 bits only.
template <class Pages>
struct Pools {
  const typename Pages::stored *keys, *values;
  const float *key_scales, *value_scales;
};

// One sequence and COUNT query heads of one key head.
template <class Pages, int COUNT>
struct Task {
  using Dot = typename Pages::Dot;
  using scalar = typename Pages::scalar;
  using stored = typename Pages::stored;
  static constexpr long STEP = LANES * Dot::PER_WORD, CACHE_LINE = 64 / sizeof(stored);
  u32x16 query[COUNT][VECTORS / Dot::PER_WORD];
  f32x16 sums[COUNT][VECTORS];               // of values by weights, relative to `highest`
  float scores[COUNT][KEYS];                 // then their weights
  float highest[COUNT], weight[COUNT] = {};  // the running maximum of scores and the sum of weights

  // Scores of `count` keys; of the last vector's spare lanes, those of any key.
  void score(const stored* const* keys, const float* scales, long count, long width, float scale) {
    constexpr int WIDE = wide(COUNT, LANES);
    for (long first = 0; first < count; first += LANES) {
      floats folded[COUNT][LANES / WIDE * FOLDS<WIDE>];
      for (int turn = 0; turn < LANES / WIDE; turn++) {
        const stored* const* own = keys + first + turn * WIDE;
        floats dot[COUNT][WIDE][REGISTERS] = {};
        const auto add = [&](long d, long left) __attribute__((always_inline)) {
#pragma GCC unroll 16
          for (int j = 0; j < WIDE; j++) {
            const Parts<words> key(Pages::words(own[j] + d, left));
#pragma GCC unroll 8
            for (int h = 0; h < COUNT; h++)
#pragma GCC unroll 4
              for (int part = 0; part < REGISTERS; part++) {
                const words by = reinterpret_cast<const words*>(&query[h][d / STEP])[part];
                dot[h][j][part] = Dot::add(dot[h][j][part], by, key.of[part]);
              }
          }
        };
        long d = 0;
        for (; d + STEP <= width; d += STEP) add(d, STEP);
        if (d < width) add(d, width - d);
        for (int h = 0; h < COUNT; h++) fold<WIDE>(dot[h], folded[h] + turn * FOLDS<WIDE>);
      }
      for (int h = 0; h < COUNT; h++) {
        f32x16 found = sums_of<WIDE>(folded[h]) * scale;
        if constexpr (Pages::SCALED) {
          f32x16 factors;
          std::memcpy(&factors, scales + first, sizeof factors);
          found *= factors;
        }
        std::memcpy(&scores[h][first], &found, sizeof found);
      }
    }
  }

  // Scores to weights; what was summed before shrinks if the maximum grew.
  void softmax(long count, long width) {
    for (int h = 0; h < COUNT; h++) {
      for (long j = count; j % LANES; j++) scores[h][j] = -INFINITY;
      f32x16 maxima = f32x16{} + highest[h];
      for (long j = 0; j < count; j += LANES) {
        f32x16 part;
        std::memcpy(&part, &scores[h][j], sizeof part);
        maxima = if_less(maxima, part, part, maxima);
      }
      float most = highest[h];
      for (int lane = 0; lane < LANES; lane++) most = std::max(most, maxima[lane]);
      const float shrunk = std::exp(highest[h] - most);
      f32x16 added = {};
      for (long j = 0; j < count; j += LANES) {
        f32x16 part;
        std::memcpy(&part, &scores[h][j], sizeof part);
        part = vector_exp(part - most);
        std::memcpy(&scores[h][j], &part, sizeof part);
        added += part;
      }
      weight[h] = weight[h] * shrunk + sum_lanes(added);
      for (long d = 0; d < width; d += LANES) sums[h][d / LANES] *= shrunk;
      highest[h] = most;
    }
  }

  // Add `count` values by their weights: WIDE vectors of them from number `d` on, of which `left` numbers remain.
  template <int WIDE>
  void add_vectors(const stored* const* values, long count, long d, long left) {
    floats sum[COUNT][WIDE][REGISTERS];
    for (int h = 0; h < COUNT; h++)
      for (int v = 0; v < WIDE; v++)
        for (int part = 0; part < REGISTERS; part++)
          sum[h][v][part] = reinterpret_cast<const floats*>(&sums[h][d / LANES + v])[part];
    for (long j = 0; j < count; j++)
#pragma GCC unroll 8
      for (int v = 0; v < WIDE; v++) {
        const Parts<floats> value(Pages::numbers(values[j] + d + v * LANES, left));
#pragma GCC unroll 8
        for (int h = 0; h < COUNT; h++)
#pragma GCC unroll 4
          for (int part = 0; part < REGISTERS; part++) sum[h][v][part] += value.of[part] * scores[h][j];
      }
    for (int h = 0; h < COUNT; h++)
      for (int v = 0; v < WIDE; v++)
        for (int part = 0; part < REGISTERS; part++)
          reinterpret_cast<floats*>(&sums[h][d / LANES + v])[part] = sum[h][v][part];
  }

  // The same, whole.
  void add_values(const stored* const* values, const float* scales, long count, long width) {
    constexpr int WIDE = wide(COUNT, 4);
    if constexpr (Pages::SCALED)
      for (int h = 0; h < COUNT; h++)
        for (long j = 0; j < count; j++) scores[h][j] *= scales[j];
    long d = 0;
    for (; d + WIDE * LANES <= width; d += WIDE * LANES) add_vectors<WIDE>(values, count, d, LANES);
    for (; d < width; d += LANES) add_vectors<1>(values, count, d, width - d);
  }

  void run(const scalar* queries, const Pools<Pages>& pools, scalar* output, const int64_t* table, long context,
           const Sizes& size, float scale) {
    for (int h = 0; h < COUNT; h++) {
      highest[h] = -INFINITY;
      for (long d = 0; d < size.key_width; d += STEP)
        query[h][d / STEP] = Pages::query(queries + h * size.head_stride + d, size.key_width - d);
      for (long d = 0; d < size.value_width; d += LANES) sums[h][d / LANES] = f32x16{};
    }
    for (long at = size.window ? std::max(0L, context - size.window) : 0; at < context; at += KEYS) {
      const long count = std::min(KEYS, context - at);
      const stored *own_keys[KEYS], *own_values[KEYS];
      float key_scales[KEYS], value_scales[KEYS];
      for (long j = 0; j < count; j++) {
        const long slot = (table[(at + j) / size.block] * size.block + (at + j) % size.block) * size.key_heads;
        own_keys[j] = pools.keys + slot * size.key_width;
        own_values[j] = pools.values + slot * size.value_width;
        if constexpr (Pages::SCALED) key_scales[j] = pools.key_scales[slot], value_scales[j] = pools.value_scales[slot];
        for (long d = 0; d < size.key_width; d += CACHE_LINE) __builtin_prefetch(own_keys[j] + d);
        for (long d = 0; d < size.value_width; d += CACHE_LINE) __builtin_prefetch(own_values[j] + d, 0, 2);
      }
      // Spare lanes read what is mapped.
      for (long j = count; j % LANES; j++) own_keys[j] = own_keys[0], key_scales[j] = 0;
      score(own_keys, key_scales, count, size.key_width, scale);
      softmax(count, size.value_width);
      add_values(own_values, value_scales, count, size.value_width);
    }
    for (int h = 0; h < COUNT; h++, output += size.value_width)
      for (long d = 0; d < size.value_width; d += LANES)
        store<typename Pages::Output>(output + d, sums[h][d / LANES] / weight[h], size.value_width - d);
  }
};

template <class Pages, int COUNT, class... Given>
void run_for(const Given&... given) {
  if constexpr (COUNT <= Pages::HEADS) Task<Pages, COUNT>().run(given...);
}

// For each of `sizes.sequences`: the query at token `tokens[i]` of the pack, the `contexts[i]` keys and values on the
// pages of `tables[i]`, the output at the same token. Called by every thread of a parallel region.
template <class Pages>
void attend(const void* queries, const Pools<Pages>& pools, void* output, const int64_t* tokens, const int64_t* tables,
            const int64_t* contexts, const Sizes& size, float scale) {
  using scalar = typename Pages::scalar;
  const long sharing = size.heads / size.key_heads, groups = (sharing + Pages::HEADS - 1) / Pages::HEADS;
  const long tasks = size.key_heads * groups;
#pragma omp for schedule(dynamic)
  for (long task = 0; task < size.sequences * tasks; task++) {
    const long sequence = task / tasks, key_head = task % tasks / groups, first = task % groups * Pages::HEADS;
    const long head = key_head * sharing + first, token = tokens[sequence];
    const scalar* q = static_cast<const scalar*>(queries) + token * size.token_stride + head * size.head_stride;
    Pools<Pages> own = {pools.keys + key_head * size.key_width, pools.values + key_head * size.value_width};
    if constexpr (Pages::SCALED)
      own.key_scales = pools.key_scales + key_head, own.value_scales = pools.value_scales + key_head;
    scalar* out = static_cast<scalar*>(output) + (token * size.heads + head) * size.value_width;
    const int64_t* table = tables + sequence * size.table;
    switch (std::min(Pages::HEADS, sharing - first)) {
      case 1: run_for<Pages, 1>(q, own, out, table, contexts[sequence], size, scale); break;
      case 2: run_for<Pages, 2>(q, own, out, table, contexts[sequence], size, scale); break;
      case 3: run_for<Pages, 3>(q, own, out, table, contexts[sequence], size, scale); break;
      case 4: run_for<Pages, 4>(q, own, out, table, contexts[sequence], size, scale); break;
      case 5: run_for<Pages, 5>(q, own, out, table, contexts[sequence], size, scale); break;
      case 6: run_for<Pages, 6>(q, own, out, table, contexts[sequence], size, scale); break;
      case 7: run_for<Pages, 7>(q, own, out, table, contexts[sequence], size, scale); break;
      case 8: run_for<Pages, 8>(q, own, out, table, contexts[sequence], size, scale); break;
    }
  }
}

}  // namespace paged_decode
