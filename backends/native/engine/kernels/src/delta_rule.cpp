// delta_rule_update_*: one token of the gated delta rule (arXiv 2412.06464, 2510.26692) for many sequences.
//
// Strategy: a head's state is read from memory once and written once, where torch's operations pass over all states
// seven times. The second pass over a head's state finds it in the cache, and prefetches the next head's.
#include "simd.h"

namespace {

constexpr long MAX_KEYS = 512;  // MAX_WIDTH of delta_rule.py

// `decays`: numbers of a head's decay, 1 or `keys`; strides of query, key and value: of a sequence, of a head.
struct Sizes {
  long sequences, heads, key_heads, keys, values, decays, normalize, threads;
  long query[2], key[2], value[2];
};

// numbers[width] in float32, divided by sqrt(sum of squares + 1e-6) if `normalize`, times `scale`.
template <class Dtype>
void read(const typename Dtype::scalar* numbers, float* to, long width, bool normalize, float scale) {
  f32x16 squares = {};
  for (long at = 0; at < width; at += LANES) {
    const f32x16 found = load<Dtype>(numbers + at, width - at);
    squares += found * found;
    store<Float32>(to + at, found, width - at);
  }
  if (normalize) scale /= std::sqrt(sum_lanes(squares) + 1e-6f);
  for (long at = 0; at < width; at++) to[at] *= scale;
}

// The token's vectors for one head. decay[keys] is the factor of each row of the state.
struct Head {
  float query[MAX_KEYS], key[MAX_KEYS], decay[MAX_KEYS];
};

// WIDE vectors of values, the last of `left` numbers: state[keys, values] moves on, and the output is state^T query.
template <class Dtype, int WIDE>
void update(float* state, const Head& head, const typename Dtype::scalar* value, float rate,
            typename Dtype::scalar* output, const Sizes& size, long left) {
  f32x16 found[WIDE] = {}, outputs[WIDE] = {};
  for (long k = 0; k < size.keys; k++) {
    const float factor = head.key[k] * head.decay[k];
    for (long at = 0; at < WIDE; at++)
      found[at] += load<Float32>(state + k * size.values + at * LANES, left - at * LANES) * factor;
  }
  for (long at = 0; at < WIDE; at++)
    found[at] = (load<Dtype>(value + at * LANES, left - at * LANES) - found[at]) * rate;
  for (long k = 0; k < size.keys; k++)
    for (long at = 0; at < WIDE; at++) {
      float* place = state + k * size.values + at * LANES;
      __builtin_prefetch(place + size.keys * size.values, 1, 2);
      const f32x16 now = load<Float32>(place, left - at * LANES) * head.decay[k] + found[at] * head.key[k];
      store<Float32>(place, now, left - at * LANES);
      outputs[at] += now * head.query[k];
    }
  for (long at = 0; at < WIDE; at++) store<Dtype>(output + at * LANES, outputs[at], left - at * LANES);
}

// query, key[sequences, key heads, keys] and value[sequences, heads, values] with strides; in float32
// state[sequences, heads, keys, values], decay[sequences, heads, decays], which is a logarithm, and rate[sequences,
// heads]; output[sequences, heads, values].
template <class Dtype>
void update_all(float* state, const void* query, const void* key, const void* value, const float* decay,
                const float* rate, void* output, const Sizes& size) {
  using scalar = typename Dtype::scalar;
  const float scale = 1.0f / std::sqrt((float)size.keys);
#pragma omp parallel for num_threads(size.threads) collapse(2)
  for (long sequence = 0; sequence < size.sequences; sequence++)
    for (long at = 0; at < size.heads; at++) {
      Head head;
      const long place = sequence * size.heads + at, shared = at / (size.heads / size.key_heads);
      read<Dtype>(static_cast<const scalar*>(query) + sequence * size.query[0] + shared * size.query[1], head.query,
                  size.keys, size.normalize, scale);
      read<Dtype>(static_cast<const scalar*>(key) + sequence * size.key[0] + shared * size.key[1], head.key, size.keys,
                  size.normalize, 1.0f);
      for (long k = 0; k < size.keys; k += LANES) {
        const f32x16 logarithms =
            size.decays > 1 ? load<Float32>(decay + place * size.keys + k, size.keys - k) : f32x16{} + decay[place];
        store<Float32>(head.decay + k, vector_exp(logarithms), size.keys - k);
      }
      const scalar* from = static_cast<const scalar*>(value) + sequence * size.value[0] + at * size.value[1];
      scalar* to = static_cast<scalar*>(output) + place * size.values;
      float* own = state + place * size.keys * size.values;
      for (long first = 0; first < size.values;) {
        const long left = size.values - first;
        if (left >= 8 * LANES)
          update<Dtype, 8>(own + first, head, from + first, rate[place], to + first, size, left), first += 8 * LANES;
        else if (left >= 4 * LANES)
          update<Dtype, 4>(own + first, head, from + first, rate[place], to + first, size, left), first += 4 * LANES;
        else
          update<Dtype, 1>(own + first, head, from + first, rate[place], to + first, size, left), first += LANES;
      }
    }
}

}  // namespace

#define DELTA_RULE_UPDATE(name, dtype)                                                                          \
  extern "C" void name(float* state, const void* query, const void* key, const void* value, const float* decay, \
                       const float* rate, void* output, const Sizes* sizes) {                                   \
    update_all<dtype>(state, query, key, value, decay, rate, output, *sizes);                                   \
  }
DELTA_RULE_UPDATE(delta_rule_update_float32, Float32)
DELTA_RULE_UPDATE(delta_rule_update_bfloat16, BFloat16)
