// Products of bfloat16 by AMX: the CPU's instruction for matrices.
//
// A weight is in the order that oneDNN chooses for these instructions: [outputs / 32, inputs / 2, 32] pairs of inputs,
// whose inputs are padded to a multiple of 32 by zeros. So 16 pairs of it are two of the CPU's tiles as they lie in
// memory. A tile of rows has up to 16 of them. It takes no longer than to read the weight: once for up to 32 rows, and
// from the cache for more. A row's sums do not depend on how many rows there are.
#pragma once

#include "simd.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>
#endif

namespace tiles {

#ifdef __AMX_BF16__
constexpr long TOGETHER = 32;          // outputs that lie together
constexpr long ROWS = 16;              // of a tile, at most
constexpr long DEPTH = 32;             // inputs of a tile
constexpr long STRIDE = 4 * TOGETHER;  // bytes between pairs of inputs of a weight
constexpr long BYTES = 16 * STRIDE;    // of a weight, for one tile of inputs and TOGETHER outputs
constexpr long AHEAD = 4 * BYTES;      // between what is read and what is prefetched
constexpr long LINE = sizeof(u32x16);

// Whether the operating system lets this process use tiles, which it must be asked for.
inline bool available() {
  constexpr int PERMIT = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of Linux
  static const bool permitted = syscall(SYS_arch_prctl, PERMIT, TILE_DATA) == 0;
  return permitted;
}

// The sizes of the CPU's eight tiles. 0 to 3 are sums of rows by outputs, 4 and 5 are rows, 6 and 7 weights.
struct alignas(64) Sizes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  explicit Sizes(long own) {
    for (int tile = 0; tile < 8; tile++) bytes[tile] = 64, rows[tile] = tile < 6 ? own : 16;
  }
};

// sums[..., 2], of `stride` bytes a row = GROUPS tiles of rows by TOGETHER outputs, whose weights are `count` tiles
// deep. The rows of one tile of inputs lie `step` bytes behind those of the one before it, the groups' `apart`.
template <int GROUPS>
void multiply_tiles(const char* rows, long step, long apart, const char* weight, long count, char* sums, char* second,
                    long stride) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (long k = 0; k < count; k++, rows += step, weight += BYTES) {
    for (long line = 0; line < BYTES; line += LINE) __builtin_prefetch(weight + AHEAD + line, 0, 2);
    _tile_loadd(4, rows, 64);
    _tile_loadd(6, weight, STRIDE);
    _tile_loadd(7, weight + 64, STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (GROUPS > 1) {
      _tile_loadd(5, rows + apart, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + 64, stride);
  if constexpr (GROUPS > 1) {
    _tile_stored(2, second, stride);
    _tile_stored(3, second + 64, stride);
  }
}

// Calls finish(sums[rows, BLOCK], the first output, how many) for the products of every BLOCK outputs:
// input[rows, inputs] by a packed weight. Called by every thread of a parallel region.
template <long BLOCK, long MOST_ROWS, class Finish>
void multiply(const void* input, const void* packed, long rows, long outputs, long inputs, Finish finish) {
  constexpr long VECTORS = BLOCK / LANES;
  const long groups = (rows + ROWS - 1) / ROWS, own = (rows + groups - 1) / groups,
             depth = (inputs + DEPTH - 1) / DEPTH;
  // Groups are equally large: the last one begins with rows of the one before it, if need be.
  const auto first_of = [&](long group) { return std::min(group * own, rows - own); };
  // [depth, groups, own] vectors of DEPTH inputs. Every thread copies all rows, as in gemm.h.
  static thread_local std::vector<u32x16> copied;
  copied.resize(depth * groups * own);
  for (long group = 0; group < groups; group++)
    for (long row = 0; row < own; row++) {
      const char* from = static_cast<const char*>(input) + (first_of(group) + row) * inputs * 2;
      for (long k = 0; k < depth; k++) {
        u32x16& to = copied[(k * groups + group) * own + row];
        to = u32x16{};
        std::memcpy(&to, from + k * sizeof to, std::min<long>(sizeof to, (inputs - k * DEPTH) * 2));
      }
    }
  const Sizes sizes(own);
  // GCC 12 does not know that the next instructions read all of this.
  __asm__ volatile("" ::"r"(&sizes), "r"(copied.data()) : "memory");
  _tile_loadconfig(&sizes);
#pragma omp for schedule(static)
  for (long first = 0; first < outputs; first += BLOCK) {
    f32x16 sums[MOST_ROWS * VECTORS];
    for (long at = first; at < std::min(first + BLOCK, outputs); at += TOGETHER)
      for (long group = 0; group < groups; group += 2) {
        const auto* from = reinterpret_cast<const char*>(copied.data() + group * own);
        const char* weight = static_cast<const char*>(packed) + at / TOGETHER * depth * BYTES;
        const auto to = [&](long of) {
          return reinterpret_cast<char*>(sums + first_of(of) * VECTORS + (at - first) / LANES);
        };
        const long step = groups * own * LINE;
        if (group + 1 < groups)
          multiply_tiles<2>(from, step, own * LINE, weight, depth, to(group), to(group + 1), VECTORS * LINE);
        else
          multiply_tiles<1>(from, step, 0, weight, depth, to(group), nullptr, VECTORS * LINE);
      }
    finish(sums, first, std::min(BLOCK, outputs - first));
  }
  _tile_release();
}
#else
inline bool available() { return false; }
#endif

}  // namespace tiles
