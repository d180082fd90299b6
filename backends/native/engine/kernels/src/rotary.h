// Between an attention layer's projections and its attention: norms of the heads, rotary embedding, store in the cache.
#pragma once

#include "rms_norm.h"

namespace rotary {

// `rotated`: the numbers of a head that the rotary embedding covers; the others stay as they are.
struct Sizes {
  long tokens, heads, key_heads, width, rotated, threads;
};

// Rotary embedding of one head, in place, over halves (GPT-NeoX's order), rounded where transformers' code rounds.
template <class Dtype>
void rotate(typename Dtype::scalar* head, const typename Dtype::scalar* cosines, const typename Dtype::scalar* sines,
            long rotated) {
  const long half = rotated / 2;
  for (long j = 0; j < half; j += LANES) {
    const long left = half - j;
    const f32x16 a = load<Dtype>(head + j, left), b = load<Dtype>(head + half + j, left);
    const f32x16 first = round_to<Dtype>(a * load<Dtype>(cosines + j, left));
    const f32x16 second = round_to<Dtype>(b * load<Dtype>(cosines + half + j, left));
    store<Dtype>(head + j, first - round_to<Dtype>(b * load<Dtype>(sines + j, left)), left);
    store<Dtype>(head + half + j, second + round_to<Dtype>(a * load<Dtype>(sines + half + j, left)), left);
  }
}

// joined[tokens, heads + 2 * key_heads, width] holds queries, keys and values. Queries and keys are normed (where there
// is a norm) and rotated in place; keys and values are copied to the cache's `slots`[tokens]. `cosines` and `sines` are
// [tokens, rotated]. Called by every thread of a parallel region.
template <class Dtype>
void rotate_and_store(void* joined, const void* cosines, const void* sines, const void* query_norm,
                      const void* key_norm, const int64_t* slots, void* keys, void* values, const Sizes& size,
                      float epsilon) {
  using scalar = typename Dtype::scalar;
  const long all = size.heads + 2 * size.key_heads, stored = size.key_heads * size.width;
#pragma omp for schedule(static)
  for (long token = 0; token < size.tokens; token++) {
    scalar* heads = static_cast<scalar*>(joined) + token * all * size.width;
    for (long head = 0; head < size.heads + size.key_heads; head++) {
      scalar* own = heads + head * size.width;
      const void* norm = head < size.heads ? query_norm : key_norm;
      if (norm) rms_norm::norm_row<Dtype>(own, static_cast<const scalar*>(norm), own, size.width, epsilon);
      rotate<Dtype>(own, static_cast<const scalar*>(cosines) + token * size.rotated,
                    static_cast<const scalar*>(sines) + token * size.rotated, size.rotated);
    }
    const scalar* key = heads + size.heads * size.width;
    std::memcpy(static_cast<scalar*>(keys) + slots[token] * stored, key, stored * sizeof *key);
    std::memcpy(static_cast<scalar*>(values) + slots[token] * stored, key + stored, stored * sizeof *key);
  }
}

}  // namespace rotary
