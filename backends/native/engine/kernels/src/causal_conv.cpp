// causal_conv_update_*: one token of a causal depthwise convolution for many sequences, whose states move on by it.
#include "simd.h"

namespace {

constexpr long SERIAL = 1 << 15;  // up to so many channels, one thread ends before the others would have woken

// `length` numbers of a state are kept for each channel, the latest last; the convolution sees `taps` <= length + 1.
// Both are constants where they can be, so that the compiler unrolls the loops.
template <class Dtype>
[[gnu::always_inline]] inline void update(const typename Dtype::scalar* input, typename Dtype::scalar* state,
                                          const typename Dtype::scalar* weight, float sum,
                                          typename Dtype::scalar* output, long length, long taps) {
  sum += Dtype::widen(*input) * Dtype::widen(weight[taps - 1]);
  for (long tap = 0; tap < taps - 1; tap++)
    sum += Dtype::widen(state[length - taps + 1 + tap]) * Dtype::widen(weight[tap]);
  for (long place = 0; place < length - 1; place++) state[place] = state[place + 1];
  state[length - 1] = *input;
  *output = Dtype::narrow(sum);
}

// input[sequences, channels] with strides, state[sequences, channels, length], weight[channels, taps], bias[channels]
// or null, output[sequences, channels]. `sizes`: sequences, channels, length, taps, and the strides of a sequence and a
// channel of `input`, in numbers.
template <class Dtype>
void update_all(const void* input, void* state, const void* weight, const void* bias, void* output, const long* sizes,
                int threads) {
  using scalar = typename Dtype::scalar;
  const long sequences = sizes[0], channels = sizes[1], length = sizes[2], taps = sizes[3];
#pragma omp parallel for num_threads(threads) if (sequences * channels > SERIAL)
  for (long sequence = 0; sequence < sequences; sequence++)
    for (long channel = 0; channel < channels; channel++) {
      const long row = sequence * channels + channel;
      const scalar* from = static_cast<const scalar*>(input) + sequence * sizes[4] + channel * sizes[5];
      scalar* kept = static_cast<scalar*>(state) + row * length;
      const scalar* by = static_cast<const scalar*>(weight) + channel * taps;
      scalar* to = static_cast<scalar*>(output) + row;
      const float first = bias ? Dtype::widen(static_cast<const scalar*>(bias)[channel]) : 0.0f;
      if (length == 3 && taps == 3)
        update<Dtype>(from, kept, by, first, to, 3, 3);
      else if (length == 4 && taps == 4)
        update<Dtype>(from, kept, by, first, to, 4, 4);
      else
        update<Dtype>(from, kept, by, first, to, length, taps);
    }
}

}  // namespace

#define CAUSAL_CONV_UPDATE(name, dtype)                                                                    \
  extern "C" void name(const void* input, void* state, const void* weight, const void* bias, void* output, \
                       const long* sizes, int threads) {                                                   \
    update_all<dtype>(input, state, weight, bias, output, sizes, threads);                                 \
  }
CAUSAL_CONV_UPDATE(causal_conv_update_float32, Float32)
CAUSAL_CONV_UPDATE(causal_conv_update_bfloat16, BFloat16)
