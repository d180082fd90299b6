// griffin_update_*: one token of Griffin's recurrent block (arXiv 2402.19427) for many sequences, from its first
// projections to its last one: convolution, both gates, gated linear recurrence, and the product with the other branch.
//
// Strategy: the gates of a head are products of all its inputs, so a head's convolution comes first. After that 16
// channels at a time: their gates' weights lie together in the order of their use, the sums of some rows stay in
// registers, and what follows them is computed there.
#include "causal_conv.h"
#include "gated_activation.h"

namespace {

constexpr int TILE = REGISTER == 64 ? 8 : 2;  // sequences whose sums are computed together, and stay in registers
typedef uint16_t halves __attribute__((vector_size(REGISTER / 2)));
constexpr int PARTS = 2 * sizeof(f32x16) / REGISTER;  // of the weights of 16 channels' gates for one input
constexpr long DISTANCE = 4096;                       // bytes of the gates' weights that are prefetched ahead
constexpr long SERIAL = 1 << 12;  // up to so many channels, one thread ends before the others would have woken

// `inputs` and `gate`: strides of a sequence. `activates`: whether GELU is applied to the other branch.
struct Sizes {
  long sequences, heads, width, length, taps, inputs, gate, activates, threads;
};

// See `griffin_update_*`.
template <class Dtype>
struct Arrays {
  using scalar = typename Dtype::scalar;
  const scalar *inputs, *gate, *conv_weight, *conv_bias, *weight, *bias, *rate;
  scalar *conv_state, *outputs;
  float *state, *convolved;
};

// One register of adjacent numbers.
template <class Dtype>
floats load_part(const typename Dtype::scalar* from) {
  if constexpr (std::is_same_v<Dtype, Float32>) {
    floats numbers;
    std::memcpy(&numbers, from, sizeof numbers);
    return numbers;
  } else {
    halves numbers;
    std::memcpy(&numbers, from, sizeof numbers);
#ifdef __AVX512F__
    return (floats)(zero_extend(numbers) << 16);
#else
    return (floats)(__builtin_convertvector(numbers, words) << 16);
#endif
  }
}

// The state after a token: state * a + input * sqrt(1 - a^2) for a = exp(-8 * rate * kept), rounded where the separate
// operations round. `into` and `kept` are the gates before their sigmoid.
template <class Dtype>
f32x16 recur(f32x16 state, f32x16 input, f32x16 into, f32x16 kept, f32x16 rate) {
  into = round_to<Dtype>(gated::sigmoid(round_to<Dtype>(into)));
  kept = round_to<Dtype>(gated::sigmoid(round_to<Dtype>(kept)));
  const f32x16 logarithm = round_to<Dtype>(-8.0f * kept * rate);
  const f32x16 squared = round_to<Dtype>(vector_exp(2.0f * logarithm));
  const f32x16 normal = round_to<Dtype>(square_root(round_to<Dtype>(1.0f - squared)));
  input = round_to<Dtype>(round_to<Dtype>(input * into) * normal);
  return state * round_to<Dtype>(vector_exp(logarithm)) + input;
}

// Up to 16 channels of a head, from `first` on, for ROWS sequences from `sequence` on.
template <class Dtype, int ROWS>
void advance(const Arrays<Dtype>& of, const Sizes& size, long head, long first, long sequence) {
  const long channels = size.heads * size.width, blocks = (size.width + LANES - 1) / LANES;
  const long left = size.width - first, channel = head * size.width + first, row = sequence * channels + channel;
  const auto* weight = of.weight + (head * blocks + first / LANES) * size.width * 2 * LANES;
  const float* inputs = of.convolved + sequence * channels + head * size.width;
  const auto* bias = of.bias + 2 * head * size.width + first;
  // Of each sequence the sums of input gates, then of recurrence gates.
  floats sums[ROWS][PARTS] = {};
  for (long k = 0; k < size.width; k++, weight += 2 * LANES) {
    __builtin_prefetch(reinterpret_cast<const char*>(weight) + DISTANCE);
    __builtin_prefetch(reinterpret_cast<const char*>(weight + LANES) + DISTANCE);
    floats by[PARTS];
    for (int part = 0; part < PARTS; part++) by[part] = load_part<Dtype>(weight + part * (2 * LANES / PARTS));
    for (int at = 0; at < ROWS; at++) {
      const floats input = floats{} + inputs[at * channels + k];
      for (int part = 0; part < PARTS; part++) sums[at][part] += input * by[part];
    }
  }
  const f32x16 rate = load<Dtype>(of.rate + channel, left);
  const f32x16 into_bias = load<Dtype>(bias, left), kept_bias = load<Dtype>(bias + size.width, left);
  for (int at = 0; at < ROWS; at++) {
    const long place = row + at * channels;
    const f32x16 input = load<Float32>(of.convolved + place, left), before = load<Float32>(of.state + place, left);
    f32x16 gates[2];
    std::memcpy(gates, sums[at], sizeof gates);
    const f32x16 state = recur<Dtype>(before, input, gates[0] + into_bias, gates[1] + kept_bias, rate);
    store<Float32>(of.state + place, state, left);
    f32x16 gate = load<Dtype>(of.gate + (sequence + at) * size.gate + channel, left);
    if (size.activates) gate = round_to<Dtype>(gated::Gelu::of(gate));
    store<Dtype>(of.outputs + place, round_to<Dtype>(state) * gate, left);
  }
}

template <class Dtype>
void update_head(const Arrays<Dtype>& of, const Sizes& size, long head) {
  const long channels = size.heads * size.width, begin = head * size.width;
  for (long sequence = 0; sequence < size.sequences; sequence++)
    for (long channel = begin; channel < begin + size.width; channel += LANES) {
      const long left = begin + size.width - channel, place = sequence * channels + channel;
      const f32x16 sums =
          causal_conv::advance<Dtype>(of.inputs + sequence * size.inputs + channel, of.conv_state + place * size.length,
                                      of.conv_weight + channel * size.taps,
                                      of.conv_bias ? of.conv_bias + channel : nullptr, left, 1, size.length, size.taps);
      store<Float32>(of.convolved + place, round_to<Dtype>(sums), left);
    }
  for (long first = 0; first < size.width; first += LANES) {
    long sequence = 0;
    for (; sequence + TILE <= size.sequences; sequence += TILE) advance<Dtype, TILE>(of, size, head, first, sequence);
    for (; sequence < size.sequences; sequence++) advance<Dtype, 1>(of, size, head, first, sequence);
  }
}

template <class Dtype>
void update_all(const Arrays<Dtype>& of, const Sizes& size) {
#pragma omp parallel for num_threads(size.threads) if (size.sequences * size.heads * size.width > SERIAL)
  for (long head = 0; head < size.heads; head++) update_head(of, size, head);
}

}  // namespace

// inputs and gate[sequences, channels] with strides, conv_state[sequences, channels, length], conv_weight[channels,
// taps], conv_bias[channels] or null; weight[heads, blocks of 16 channels, width, 2, 16], padded with zeros,
// bias[heads, 2, width]: of input gates, then of recurrence gates; rate[channels]; state and convolved[sequences,
// channels] in float32, of which the latter is only written; outputs[sequences, channels].
#define GRIFFIN_UPDATE(name, dtype)                                                                                   \
  extern "C" void name(const dtype::scalar* inputs, const dtype::scalar* gate, dtype::scalar* conv_state,             \
                       const dtype::scalar* conv_weight, const dtype::scalar* conv_bias, const dtype::scalar* weight, \
                       const dtype::scalar* bias, const dtype::scalar* rate, float* state, float* convolved,          \
                       dtype::scalar* outputs, const Sizes* sizes) {                                                  \
    update_all<dtype>(                                                                                                \
        {inputs, gate, conv_weight, conv_bias, weight, bias, rate, conv_state, outputs, state, convolved}, *sizes);   \
  }
GRIFFIN_UPDATE(griffin_update_float32, Float32)
GRIFFIN_UPDATE(griffin_update_bfloat16, BFloat16)
