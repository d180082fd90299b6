// paged_prefill_bfloat16: causal attention of one sequence's new tokens over its pages, in bfloat16.
//
// Strategy: keys and values are packed once a call into the order that the skinny GEMM reads (gemm.h), and that GEMM
// multiplies: QUERIES queries by 64 keys, the online softmax (FlashAttention's running maximum and sum, in float32),
// the weights by 64 values, and on. Of keys, a word is a pair of neighbouring numbers and the 64 outputs are 64 keys;
// of values, a word is a pair of neighbouring keys and the 64 outputs are 64 numbers.
#include "gemm.h"

using gemm::add_rows;
using gemm::BLOCK;
using gemm::VECTORS;

constexpr long QUERIES = 64, PAIRS = BLOCK / 2;
constexpr long MAX_WIDTH = 512;   // of a key or a value; MAX_WIDTH of cpu_prefill.py
constexpr float LOWEST = -1e30f;  // below every score, yet finite: the difference of two of them is 0, not NaN

// `page` is the tokens of a page, `window` the sliding window (0: none); the strides are the queries', in numbers.
struct Sizes {
  long tokens, context, page, window, heads, key_heads, width, token_stride, head_stride, threads;
};

// 64 keys of one head as [width / 2, 64] pairs, their values as [width / 64, 32, 64] pairs; beyond the context zeros.
void pack(const uint16_t* keys, const uint16_t* values, const int64_t* table, long from, const Sizes& size,
          uint32_t* packed_keys, uint32_t* packed_values) {
  std::memset(packed_keys, 0, size.width * BLOCK * sizeof *keys);
  std::memset(packed_values, 0, size.width * BLOCK * sizeof *values);
  const long count = std::min(BLOCK, size.context - from);
  for (long j = 0; j < count; j++) {
    const long at = from + j, slot = table[at / size.page] * size.page + at % size.page;
    const long skipped = slot * size.key_heads * size.width;
    const uint16_t *key = keys + skipped, *value = values + skipped;
    for (long pair = 0; pair < size.width / 2; pair++) std::memcpy(packed_keys + pair * BLOCK + j, key + 2 * pair, 4);
    auto* halved = reinterpret_cast<uint16_t*>(packed_values) + j / 2 * BLOCK * 2 + j % 2;
    for (long d = 0; d < size.width; d++) halved[d / BLOCK * PAIRS * BLOCK * 2 + d % BLOCK * 2] = value[d];
  }
}

// Up to QUERIES tokens of one query head.
struct Tile {
  float highest[QUERIES], weight[QUERIES];           // running maximum of scores, sum of weights
  f32x16 scores[QUERIES][VECTORS];                   // of one block of keys
  f32x16 sums[MAX_WIDTH / BLOCK][QUERIES][VECTORS];  // of values by weights
  uint16_t weights[QUERIES][BLOCK];                  // of one block of keys

  // A row's scores of 64 keys, of which it sees those from `first` up to `end`, to weights.
  void softmax(long row, long first, long end, float scale, long columns) {
    f32x16 most = f32x16{} + LOWEST;
    for (long v = 0; v < VECTORS; v++) {
      const i32x16 key = LANE_INDEX + (int)(v * LANES);
      const f32x16 score = scores[row][v] * scale;
      scores[row][v] = (key >= (int)first) & (key < (int)end) ? score : f32x16{} - INFINITY;
      most = if_less(scores[row][v], most, most, scores[row][v]);
    }
    float higher = highest[row];
    for (long lane = 0; lane < LANES; lane++) higher = std::max(higher, most[lane]);
    if (higher > highest[row]) shrink(row, vector_exp(f32x16{} + (highest[row] - higher))[0], columns);
    highest[row] = higher;
    f32x16 added = {};
    for (long v = 0; v < VECTORS; v++) {
      const f32x16 part = vector_exp(scores[row][v] - higher);
      const u16x16 half = BFloat16::narrow(part);
      std::memcpy(&weights[row][v * LANES], &half, sizeof half);
      added += part;
    }
    weight[row] += sum_lanes(added);
  }

  // The row's maximum grew: scale what was summed before.
  void shrink(long row, float factor, long columns) {
    weight[row] *= factor;
    for (long column = 0; column < columns; column++)
      for (long v = 0; v < VECTORS; v++) sums[column][row][v] *= factor;
  }

  // `rows` tokens from `position` of the context on; `keys` and `values` are the head's, packed.
  void run(const uint16_t* queries, long rows, long position, const Sizes& size, float scale, const uint32_t* keys,
           const uint32_t* values, uint16_t* output) {
    const long columns = size.width / BLOCK, each = size.width * PAIRS;
    std::fill(highest, highest + rows, LOWEST);
    std::fill(weight, weight + rows, 0.0f);
    std::memset(sums, 0, columns * sizeof sums[0]);
    const long first = size.window ? std::max(0L, position - size.window + 1) / BLOCK : 0;
    for (long block = first; block * BLOCK < position + rows; block++) {
      std::memset(scores, 0, sizeof scores);
      add_rows<DotBFloat16>(reinterpret_cast<const uint32_t*>(queries), size.token_stride / 2,
                            reinterpret_cast<const u32x16*>(keys + block * each), size.width / 2, scores[0], rows);
      for (long row = 0; row < rows; row++) {
        const long end = position + row + 1 - block * BLOCK;
        softmax(row, size.window ? end - size.window : 0, end, scale, columns);
      }
      for (long column = 0; column < columns; column++)
        add_rows<DotBFloat16>(reinterpret_cast<const uint32_t*>(weights), PAIRS,
                              reinterpret_cast<const u32x16*>(values + block * each + column * PAIRS * BLOCK), PAIRS,
                              sums[column][0], rows);
    }
    for (long row = 0; row < rows; row++)
      for (long at = 0; at < size.width; at += LANES) {
        const u16x16 half = BFloat16::narrow(sums[at / BLOCK][row][at % BLOCK / LANES] / weight[row]);
        std::memcpy(output + row * size.heads * size.width + at, &half, sizeof half);
      }
  }
};

// Whether the CPU multiplies bfloat16: without it this kernel is right, but slower than torch's own.
extern "C" int has_bfloat16_dot() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

// `packed` has room for the packed keys and then the packed values: [2, key_heads, blocks, 64, width] numbers.
extern "C" void paged_prefill_bfloat16(const uint16_t* queries, const uint16_t* keys, const uint16_t* values,
                                       const int64_t* table, uint32_t* packed, uint16_t* output, const Sizes* sizes,
                                       float scale) {
  const Sizes size = *sizes;
  const long blocks = (size.context + BLOCK - 1) / BLOCK, tiles = (size.tokens + QUERIES - 1) / QUERIES;
  const long each = size.width * PAIRS, sharing = size.heads / size.key_heads;
  uint32_t* packed_values = packed + size.key_heads * blocks * each;
#pragma omp parallel num_threads(size.threads)
  {
#pragma omp for schedule(static)
    for (long part = 0; part < size.key_heads * blocks; part++) {
      const long skipped = part / blocks * size.width;
      pack(keys + skipped, values + skipped, table, part % blocks * BLOCK, size, packed + part * each,
           packed_values + part * each);
    }
    auto* tile = new Tile;
#pragma omp for schedule(dynamic)
    for (long task = 0; task < size.heads * tiles; task++) {  // the tiles with the most keys first
      const long head = task % size.heads, from = (tiles - 1 - task / size.heads) * QUERIES;
      const long at = head / sharing * blocks * each;
      tile->run(queries + from * size.token_stride + head * size.head_stride, std::min(QUERIES, size.tokens - from),
                size.context - size.tokens + from, size, scale, packed + at, packed_values + at,
                output + (from * size.heads + head) * size.width);
    }
    delete tile;
  }
}
