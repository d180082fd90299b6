"""Attention of prompts on CPUs that multiply bfloat16: compiled, over pages where they lie.

torch's own attends in bfloat16 as slowly as in float32. Here keys and values are laid out once a call as `few_rows`
wants its weights, and that routine multiplies: queries by 64 keys, their softmax so far by 64 values, and on. The
softmax is kept in float32. Other dtypes and widths, and what cannot be compiled, are left to `reference`.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.kernels.gemv import TILES
from backends.native.engine.kernels.jit import Routine, routine

_BLOCK = 64  # keys, and numbers of a value, that lie together
_MOST_WIDTH = 512  # of keys and values; MOST_WIDTH below


def attend_prompts(
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    metadata: AttentionMetadata,
    params: AttentionParams,
    output: Tensor,
) -> bool:
    """Write what `attention.Kernel` gives to `output`, for sequences of several new tokens; False if it cannot.

    Softcap and sinks are not looked at.
    """
    attend = _function() if _takes(queries, cache) else None
    if attend is None:
        return False
    lengths = zip(metadata.starts, metadata.query_lengths, metadata.context_lengths, strict=True)
    for row, (start, new, context) in enumerate(lengths):
        if new > 1:
            own, table = slice(start, start + new), metadata.block_tables[row]
            _attend(attend, queries[own], cache, block_size, table, context, params, output[own])
    return True


def _attend(
    attend: Routine,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    table: Tensor,
    context: int,
    params: AttentionParams,
    output: Tensor,
) -> None:
    """For one sequence: `queries` and `output` are its own, and `table` [blocks] its pages."""
    new, heads, width = queries.shape
    key_heads = cache.keys.shape[1]
    packed = cache.keys.new_empty(2, key_heads, -(-context // _BLOCK), _BLOCK * width)
    attend(
        queries.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        table.data_ptr(),
        packed.data_ptr(),
        output.data_ptr(),
        (ctypes.c_long * 10)(
            new,
            context,
            block_size,
            params.sliding_window or 0,
            heads,
            key_heads,
            width,
            queries.stride(0),
            queries.stride(1),
            torch.get_num_threads(),
        ),
        params.scale,
    )


def _takes(queries: Tensor, cache: LayerCache) -> bool:
    width = queries.shape[2]
    return (
        queries.device.type == "cpu"
        and queries.dtype == cache.keys.dtype == torch.bfloat16
        and width == cache.values.shape[2] <= _MOST_WIDTH
        and width % _BLOCK == 0
        and queries.stride(2) == 1
        and queries.stride(0) % 2 == queries.stride(1) % 2 == queries.data_ptr() % 4 == 0  # pairs are read
    )


@cache
def _function() -> Routine | None:
    """None, too, where bfloat16 is not multiplied: it would be slower than torch's."""
    return routine("prompt_attention", TILES + _SOURCE, "attend_prompt", *[ctypes.c_void_p] * 7, ctypes.c_float)


# A task is 64 tokens of a query head. Of keys, a pair of neighbouring numbers is what `few_rows` has together, and 64
# keys are its outputs; of values, a pair of neighbouring keys, and 64 numbers.
_SOURCE = r"""
constexpr long QUERIES = 64, PAIRS = BLOCK / 2, MOST_WIDTH = 512;
constexpr float LOWEST = -1e30f;  // no score, yet not so low that two of them have no difference

constexpr integers COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

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

struct Tile {
  float highest[QUERIES], weight[QUERIES];
  floats scores[QUERIES][VECTORS], sums[MOST_WIDTH / BLOCK][QUERIES][VECTORS];
  uint16_t weights[QUERIES][BLOCK];

  // A row's scores of 64 keys, of which it sees those from `first` up to `end`, to weights.
  void weigh(long row, long first, long end, float scale, long columns) {
    floats most = floats{} + LOWEST;
    for (long v = 0; v < VECTORS; v++) {
      const integers key = COUNT + (int)(v * LANES);
      const floats score = scores[row][v] * scale;
      scores[row][v] = (key >= (int)first) & (key < (int)end) ? score : floats{} - INFINITY;
      most = most > scores[row][v] ? most : scores[row][v];
    }
    float higher = highest[row];
    for (long lane = 0; lane < LANES; lane++) higher = std::max(higher, most[lane]);
    if (higher > highest[row]) shrink(row, exponential(floats{} + (highest[row] - higher))[0], columns);
    highest[row] = higher;
    floats added = {};
    for (long v = 0; v < VECTORS; v++) {
      const floats part = exponential(scores[row][v] - higher);
      const halves half = BFloat16::narrow(part);
      std::memcpy(&weights[row][v * LANES], &half, sizeof half);
      added += part;
    }
    weight[row] += total(added);
  }

  void shrink(long row, float factor, long columns) {
    weight[row] *= factor;
    for (long column = 0; column < columns; column++)
      for (long v = 0; v < VECTORS; v++) sums[column][row][v] *= factor;
  }

  void run(const uint16_t* queries, long rows, long position, const Sizes& size, float scale, const uint32_t* keys,
           const uint32_t* values, uint16_t* output) {
    const long columns = size.width / BLOCK, each = size.width * PAIRS;
    std::fill(highest, highest + rows, LOWEST);
    std::fill(weight, weight + rows, 0.0f);
    std::memset(sums, 0, columns * sizeof sums[0]);
    const long first = size.window ? std::max(0L, position - size.window + 1) / BLOCK : 0;
    for (long block = first; block * BLOCK < position + rows; block++) {
      std::memset(scores, 0, sizeof scores);
      add_rows<TwoBFloat16>(reinterpret_cast<const uint32_t*>(queries), size.token_stride / 2,
                            reinterpret_cast<const words*>(keys + block * each), size.width / 2, scores[0], rows);
      for (long row = 0; row < rows; row++) {
        const long end = position + row + 1 - block * BLOCK;
        weigh(row, size.window ? end - size.window : 0, end, scale, columns);
      }
      for (long column = 0; column < columns; column++)
        add_rows<TwoBFloat16>(reinterpret_cast<const uint32_t*>(weights), PAIRS,
                              reinterpret_cast<const words*>(values + block * each + column * PAIRS * BLOCK), PAIRS,
                              sums[column][0], rows);
    }
    for (long row = 0; row < rows; row++)
      for (long at = 0; at < size.width; at += LANES) {
        const halves half = BFloat16::narrow(sums[at / BLOCK][row][at % BLOCK / LANES] / weight[row]);
        std::memcpy(output + row * size.heads * size.width + at, &half, sizeof half);
      }
  }
};

#ifdef __AVX512BF16__
extern "C" void attend_prompt(const uint16_t* queries, const uint16_t* keys, const uint16_t* values,
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
    for (long task = 0; task < size.heads * tiles; task++) {  // the longest first
      const long head = task % size.heads, from = (tiles - 1 - task / size.heads) * QUERIES;
      const long at = head / sharing * blocks * each;
      tile->run(queries + from * size.token_stride + head * size.head_stride, std::min(QUERIES, size.tokens - from),
                size.context - size.tokens + from, size, scale, packed + at, packed_values + at,
                output + (from * size.heads + head) * size.width);
    }
    delete tile;
  }
}
#endif
"""
