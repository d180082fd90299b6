// One token of a causal depthwise convolution of neighbouring channels, whose states move on by it.
#pragma once

#include <type_traits>

#include "simd.h"

namespace causal_conv {

// The products of `count` <= LANES channels with states and input are added to sums[LANES], and the states move on. All
// but the pointers are constants where they can be: the compiler then unrolls the loops and makes vectors of channels.
template <class Dtype>
[[gnu::always_inline]] inline void update(const typename Dtype::scalar* __restrict input,
                                          typename Dtype::scalar* __restrict state,
                                          const typename Dtype::scalar* __restrict weight, float* __restrict sums,
                                          long count, long stride, long length, long taps) {
#pragma omp simd
  for (long channel = 0; channel < count; channel++) {
    const auto latest = input[channel * stride];
    auto* own = state + channel * length;
    const auto* by = weight + channel * taps;
    float sum = sums[channel] + Dtype::widen(latest) * Dtype::widen(by[taps - 1]);
    for (long tap = 0; tap < taps - 1; tap++) sum += Dtype::widen(own[length - taps + 1 + tap]) * Dtype::widen(by[tap]);
    for (long place = 0; place < length - 1; place++) own[place] = own[place + 1];
    own[length - 1] = latest;
    sums[channel] = sum;
  }
}

// Four bfloat16 of each of LANES neighbouring channels: words of the first two and of the last two.
struct Pairs {
  u32x16 earlier, later;

  explicit Pairs(const uint16_t* from) {
    u32x16 halves[2];
    std::memcpy(halves, from, sizeof halves);
    earlier = even_lanes(halves[0], halves[1]), later = odd_lanes(halves[0], halves[1]);
  }
  void store(uint16_t* to) const {
    const u32x16 halves[2] = {interleave_lower(earlier, later), interleave_upper(earlier, later)};
    std::memcpy(to, halves, sizeof halves);
  }
  static f32x16 first(u32x16 words) { return (f32x16)(words << 16); }
  static f32x16 second(u32x16 words) { return (f32x16)(words & 0xffff0000u); }
};

// The same as `update` for LANES neighbouring channels of bfloat16, four taps and four numbers of each channel's state.
inline f32x16 update_pairs(const uint16_t* input, uint16_t* state, const uint16_t* weight, f32x16 sums) {
  const Pairs by(weight), before(state);
  const f32x16 latest = load<BFloat16>(input, LANES);
  sums += latest * Pairs::second(by.later);
  sums += Pairs::second(before.earlier) * Pairs::first(by.earlier);
  sums += Pairs::first(before.later) * Pairs::second(by.earlier);
  sums += Pairs::second(before.later) * Pairs::first(by.later);
  Pairs after = before;
  after.earlier = before.earlier >> 16 | before.later << 16;
  after.later = before.later >> 16 | (u32x16)latest;
  after.store(state);
  return sums;
}

// The outputs of up to LANES of the `left` channels from these places on; `bias` may be null. `stride`: of a channel's
// input. `length` numbers of a state are kept for each channel, the latest last; the convolution sees `taps` <= length
// + 1.
template <class Dtype>
f32x16 advance(const typename Dtype::scalar* input, typename Dtype::scalar* state, const typename Dtype::scalar* weight,
               const typename Dtype::scalar* bias, long left, long stride, long length, long taps) {
  f32x16 sums = bias ? load<Dtype>(bias, left) : f32x16{};
  auto* numbers = reinterpret_cast<float*>(&sums);
  const long count = std::min(LANES, left), kind = count == LANES && stride == 1 ? 10 * length + taps : 0;
  if constexpr (std::is_same_v<Dtype, BFloat16>) {
    if (kind == 44) sums = update_pairs(input, state, weight, sums);
  } else {
    if (kind == 44) update<Dtype>(input, state, weight, numbers, LANES, 1, 4, 4);
  }
  if (kind == 33)
    update<Dtype>(input, state, weight, numbers, LANES, 1, 3, 3);
  else if (kind == 34)
    update<Dtype>(input, state, weight, numbers, LANES, 1, 3, 4);
  else if (kind != 44)
    update<Dtype>(input, state, weight, numbers, count, stride, length, taps);
  return sums;
}

}  // namespace causal_conv
