// causal_conv_update_*: one token of a causal depthwise convolution for many sequences. See causal_conv.h.
#include "causal_conv.h"

namespace {

constexpr long SERIAL = 1 << 15;  // up to so many channels, one thread ends before the others would have woken

// Strides of `input` are of a sequence and a channel.
struct Sizes {
  long sequences, channels, length, taps, stride, channel_stride;
};

// input[sequences, channels] with strides, state[sequences, channels, length], weight[channels, taps], bias[channels]
// or null, output[sequences, channels].
template <class Dtype>
void update_all(const void* input, void* state, const void* weight, const void* bias, void* output, const Sizes& size,
                int threads) {
  using scalar = typename Dtype::scalar;
#pragma omp parallel for num_threads(threads) if (size.sequences * size.channels > SERIAL)
  for (long sequence = 0; sequence < size.sequences; sequence++)
    for (long channel = 0; channel < size.channels; channel += LANES) {
      const long row = sequence * size.channels + channel, left = size.channels - channel;
      const f32x16 sums = causal_conv::advance<Dtype>(
          static_cast<const scalar*>(input) + sequence * size.stride + channel * size.channel_stride,
          static_cast<scalar*>(state) + row * size.length, static_cast<const scalar*>(weight) + channel * size.taps,
          bias ? static_cast<const scalar*>(bias) + channel : nullptr, left, size.channel_stride, size.length,
          size.taps);
      store<Dtype>(static_cast<scalar*>(output) + row, sums, left);
    }
}

}  // namespace

#define CAUSAL_CONV_UPDATE(name, dtype)                                                                    \
  extern "C" void name(const void* input, void* state, const void* weight, const void* bias, void* output, \
                       const Sizes* sizes, int threads) {                                                  \
    update_all<dtype>(input, state, weight, bias, output, *sizes, threads);                                \
  }
CAUSAL_CONV_UPDATE(causal_conv_update_float32, Float32)
CAUSAL_CONV_UPDATE(causal_conv_update_bfloat16, BFloat16)
