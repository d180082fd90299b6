"""Attention on CPUs: sequences in decode by a compiled routine that reads their pages where they lie.

`reference` gathers the pages first and pads sequences to one length, which on a CPU takes longer than attending does.
What the compiled routine does not know (softcap, sinks, other dtypes, GPUs) goes on to `reference`, and all of it where
nothing can be compiled. Prompts are attended to by `prompt_attention`, if it can.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.cpu_prefill import attend_prompts
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, index_tensor
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import fill, reference_kernel
from backends.native.engine.kernels.gemv import WORDS
from backends.native.engine.kernels.jit import Routine, routine

MOST_WIDTH = 512  # of keys and values; MOST_WIDTH below
_FUNCTIONS = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}


@dataclass(slots=True, eq=False, frozen=True)
class Decoding:
    """A step's sequences with one new token.

    Attributes:
        tokens: [sequences] int64, where their tokens are in the pack.
        tables: [sequences, blocks] int64, their pages.
        contexts: [sequences] int64, tokens up to now.
        alone: whether the step has no others.
    """

    tokens: Tensor
    tables: Tensor
    contexts: Tensor
    alone: bool


def paged_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """See `attention.Kernel`."""
    attend = _function(cache.keys.dtype) if _takes(queries, cache, params) else None
    if attend is None:
        return reference_kernel(queries, cache, block_size, metadata, params)
    decoding = decoding_of(metadata)
    output = queries.new_empty(*queries.shape[:2], cache.values.shape[2])
    _decode(attend, queries, cache, block_size, decoding, params, output)
    if not decoding.alone and not attend_prompts(queries, cache, block_size, metadata, params, output):
        fill(output, queries, cache, block_size, metadata, params, decoding=False)
    return output


def decoding_of(metadata: AttentionMetadata) -> Decoding:
    """Those of a step, found once."""
    found: Decoding | None = metadata.plans.get("decoding")
    if found is None:
        found = metadata.plans["decoding"] = find_decoding(metadata)
    return found


def find_decoding(metadata: AttentionMetadata) -> Decoding:
    """Those of a step."""
    tables, counts = metadata.block_tables, metadata.query_lengths
    contexts = index_tensor(metadata.context_lengths, tables.device)
    starts = index_tensor(metadata.starts, tables.device)
    if max(counts) == 1:
        return Decoding(starts, tables, contexts, alone=True)
    rows = index_tensor([row for row, count in enumerate(counts) if count == 1], tables.device)
    return Decoding(starts[rows], tables[rows], contexts[rows], alone=False)


def _takes(queries: Tensor, cache: LayerCache, params: AttentionParams) -> bool:
    return (
        queries.device.type == "cpu"
        and queries.dtype == cache.keys.dtype
        and queries.dtype in _FUNCTIONS
        and queries.stride(2) == 1
        and max(queries.shape[2], cache.values.shape[2]) <= MOST_WIDTH
        and params.is_plain
    )


def _decode(
    attend: Routine,
    queries: Tensor,
    cache: LayerCache,
    block_size: int,
    decoding: Decoding,
    params: AttentionParams,
    output: Tensor,
) -> None:
    """Write to `output` at the tokens of sequences in decode."""
    keys, values = cache.keys, cache.values
    attend(
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        decoding.tokens.data_ptr(),
        decoding.tables.data_ptr(),
        decoding.contexts.data_ptr(),
        (ctypes.c_long * 11)(
            len(decoding.tokens),
            decoding.tables.shape[1],
            block_size,
            params.sliding_window or 0,
            queries.shape[1],
            keys.shape[1],
            queries.shape[2],
            values.shape[2],
            queries.stride(0),
            queries.stride(1),
            torch.get_num_threads(),
        ),
        params.scale,
    )


@cache
def _function(dtype: torch.dtype) -> Routine | None:
    return routine("paged_attention", _SOURCE, _FUNCTIONS[dtype], *[ctypes.c_void_p] * 8, ctypes.c_float)


# A task is a sequence and up to eight of the query heads that share a key head. Keys are taken 128 at a time: all their
# scores, then the softmax so far (its maximum and sum grow from piece to piece), then the values.
DECODE = (
    WORDS
    + r"""
constexpr long HEADS = 8, PIECE = 128, MOST_WIDTH = 512, VECTORS = MOST_WIDTH / LANES;

struct Sizes {
  long sequences, table, block, window, heads, key_heads, key_width, value_width, token_stride, head_stride, threads;
};

constexpr integers FIRST[] = {{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
                           {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27},
                           {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29},
                           {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}};

// The sums of 2^LEVEL vectors, in their order: the halves of each come together until each has 16 / 2^LEVEL lanes.
template <int LEVEL>
inline floats totals(const floats* vectors) {
  if constexpr (LEVEL == 0) return vectors[0];
  else {
    const floats a = totals<LEVEL - 1>(vectors), b = totals<LEVEL - 1>(vectors + (1 << (LEVEL - 1)));
    const integers first = FIRST[LEVEL - 1], second = first + (int)(LANES >> LEVEL);
    return __builtin_shuffle(a, b, first) + __builtin_shuffle(a, b, second);
  }
}

template <class Kind>
words read_words(const typename Kind::number* from, long left) {
  words values = {};
  if (left >= LANES * Kind::together) std::memcpy(&values, from, sizeof values);
  else std::memcpy(&values, from, left * sizeof *from);
  return values;
}

template <class Kind, int COUNT>
struct Task {
  using number = typename Kind::number;
  static constexpr long step = LANES * Kind::together, LINE = 64 / sizeof(number);
  words query[COUNT][VECTORS / Kind::together];
  floats sums[COUNT][VECTORS];
  float scores[COUNT][PIECE], highest[COUNT], weight[COUNT] = {};

  void score(const number* const* keys, long count, long width, float scale) {
    for (long first = 0; first < count; first += LANES)
      for (int h = 0; h < COUNT; h++) {
        floats dot[LANES] = {};
        for (long d = 0; d < width; d += step)
#pragma GCC unroll 16
          for (int j = 0; j < LANES; j++)
            dot[j] = Kind::add(dot[j], query[h][d / step], read_words<Kind>(keys[first + j] + d, width - d));
        const floats found = totals<4>(dot) * scale;
        std::memcpy(&scores[h][first], &found, sizeof found);
      }
  }

  void normalise(long count, long width) {
    for (int h = 0; h < COUNT; h++) {
      for (long j = count; j % LANES; j++) scores[h][j] = -INFINITY;
      floats mosts = floats{} + highest[h];
      for (long j = 0; j < count; j += LANES) {
        floats part;
        std::memcpy(&part, &scores[h][j], sizeof part);
        mosts = part > mosts ? part : mosts;
      }
      float most = highest[h];
      for (int lane = 0; lane < LANES; lane++) most = std::max(most, mosts[lane]);
      const float shrunk = std::exp(highest[h] - most);
      floats added = {};
      for (long j = 0; j < count; j += LANES) {
        floats part;
        std::memcpy(&part, &scores[h][j], sizeof part);
        part = exponential(part - most);
        std::memcpy(&scores[h][j], &part, sizeof part);
        added += part;
      }
      weight[h] = weight[h] * shrunk + total(added);
      for (long d = 0; d < width; d += LANES) sums[h][d / LANES] *= shrunk;
      highest[h] = most;
    }
  }

  void mix(const number* const* values, long count, long width) {
    for (long d = 0; d < width; d += LANES) {
      floats sum[COUNT];
      for (int h = 0; h < COUNT; h++) sum[h] = sums[h][d / LANES];
      for (long j = 0; j < count; j++) {
        const floats value = read<Kind>(values[j] + d, width - d);
        for (int h = 0; h < COUNT; h++) sum[h] += value * scores[h][j];
      }
      for (int h = 0; h < COUNT; h++) sums[h][d / LANES] = sum[h];
    }
  }

  void run(const number* queries, const number* keys, const number* values, number* output, const int64_t* table,
           long context, const Sizes& size, float scale) {
    for (int h = 0; h < COUNT; h++) {
      highest[h] = -INFINITY;
      for (long d = 0; d < size.key_width; d += step)
        query[h][d / step] = read_words<Kind>(queries + h * size.head_stride + d, size.key_width - d);
      for (long d = 0; d < size.value_width; d += LANES) sums[h][d / LANES] = floats{};
    }
    for (long at = size.window ? std::max(0L, context - size.window) : 0; at < context; at += PIECE) {
      const long count = std::min(PIECE, context - at);
      const number *seen[PIECE], *held[PIECE];
      for (long j = 0; j < count; j++) {
        const long slot = (table[(at + j) / size.block] * size.block + (at + j) % size.block) * size.key_heads;
        seen[j] = keys + slot * size.key_width;
        held[j] = values + slot * size.value_width;
        for (long d = 0; d < size.key_width; d += LINE) __builtin_prefetch(seen[j] + d);
        for (long d = 0; d < size.value_width; d += LINE) __builtin_prefetch(held[j] + d, 0, 2);
      }
      for (long j = count; j % LANES; j++) seen[j] = seen[0];
      score(seen, count, size.key_width, scale);
      normalise(count, size.value_width);
      mix(held, count, size.value_width);
    }
    for (int h = 0; h < COUNT; h++)
      for (long d = 0; d < size.value_width; d++)
        output[h * size.value_width + d] = Kind::narrow(sums[h][d / LANES][d % LANES] / weight[h]);
  }
};

template <class Kind>
void attend(const void* queries, const void* keys, const void* values, void* output, const int64_t* tokens,
            const int64_t* tables, const int64_t* contexts, const Sizes& size, float scale) {
  using number = typename Kind::number;
  const long sharing = size.heads / size.key_heads, groups = (sharing + HEADS - 1) / HEADS;
  const long tasks = size.key_heads * groups;
#pragma omp for schedule(dynamic)
  for (long task = 0; task < size.sequences * tasks; task++) {
    const long sequence = task / tasks, key_head = task % tasks / groups, first = task % groups * HEADS;
    const long head = key_head * sharing + first, token = tokens[sequence];
    const number* q = static_cast<const number*>(queries) + token * size.token_stride + head * size.head_stride;
    const number* k = static_cast<const number*>(keys) + key_head * size.key_width;
    const number* v = static_cast<const number*>(values) + key_head * size.value_width;
    number* out = static_cast<number*>(output) + (token * size.heads + head) * size.value_width;
    const int64_t* table = tables + sequence * size.table;
    switch (std::min(HEADS, sharing - first)) {
#define TASK(count) case count: Task<Kind, count>().run(q, k, v, out, table, contexts[sequence], size, scale); break;
      TASK(1) TASK(2) TASK(3) TASK(4) TASK(5) TASK(6) TASK(7) TASK(8)
    }
  }
}
"""
)
"""Attention of sequences' next tokens to their pages, by the threads of a region: `attend`."""
_SOURCE = (
    DECODE
    + r"""
#define ATTEND(name, kind)                                                                                        \
  extern "C" void name(const void* queries, const void* keys, const void* values, void* output,                   \
                       const int64_t* tokens, const int64_t* tables, const int64_t* contexts, const Sizes* sizes, \
                       float scale) {                                                                             \
    _Pragma("omp parallel num_threads(sizes->threads) if (sizes->sequences * sizes->key_heads > 1)")              \
    attend<kind>(queries, keys, values, output, tokens, tables, contexts, *sizes, scale);                         \
  }
ATTEND(attend_float32, OneFloat32)
ATTEND(attend_bfloat16, TwoBFloat16)
"""
)
