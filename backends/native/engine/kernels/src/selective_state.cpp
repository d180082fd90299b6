// selective_state_update_*: one token of Mamba's recurrence (arXiv 2312.00752, 2405.21060) for many sequences.
//
// Strategy: a state is read and written once, where torch's operations pass over it nine times. What comes before and
// after for each row (step sizes, gates) is computed for 16 rows at once.
#include "gated_activation.h"

namespace {

constexpr long MAX_SIZE = 256;   // MAX_SIZE of selective_state.py
constexpr long DISTANCE = 1024;  // numbers of the states that are prefetched ahead
constexpr long WIDTH = REGISTER / sizeof(float);

// Strides are of a sequence, a head and a row of a head; of `into` and `out`, of a sequence and a group of heads.
struct Sizes {
  long sequences, heads, width, size, groups, softplus, alike, threads;
  long steps[3], inputs[3], gate[3], decay[2], bias[2], skip[2], into[2], out[2];
};

// The sum of each of 16 vectors, which are overwritten.
inline f32x16 sum_each(f32x16* rows) {
#ifndef __AVX512F__  // a shuffle of vectors that are wider than a register takes a move a lane
  f32x16 found;
  for (int row = 0; row < LANES; row++) found[row] = sum_lanes(rows[row]);
  return found;
#endif
  for (long count = LANES; count > 1; count /= 2)
    for (long at = 0; at < count / 2; at++)
      rows[at] = even_lanes(rows[2 * at], rows[2 * at + 1]) + odd_lanes(rows[2 * at], rows[2 * at + 1]);
  return rows[0];
}

// log(1 + exp(x)). log(1 + y) is 2 atanh(y / (2 + y)), of which nine terms are left.
inline f32x16 softplus(f32x16 x) {
  const f32x16 y = vector_exp(if_less(x, f32x16{}, x, -x)), s = y / (y + 2.0f), square = s * s;
  f32x16 series = f32x16{} + 1.0f / 17;
  for (int odd = 15; odd > 0; odd -= 2) series = series * square + 1.0f / odd;
  return if_less(x, f32x16{}, f32x16{}, x) + 2.0f * s * series;
}

// LANES numbers with a stride, or the `left` that remain.
template <class Dtype>
f32x16 gather(const void* numbers, long place, long stride, long left) {
  const auto* from = static_cast<const typename Dtype::scalar*>(numbers) + place;
  if (stride == 1) return load<Dtype>(from, left);
  if (stride == 0) return f32x16{} + Dtype::widen(*from);
  f32x16 found = {};
  for (long lane = 0; lane < std::min(LANES, left); lane++) found[lane] = Dtype::widen(from[lane * stride]);
  return found;
}

struct Arrays {
  float* state;
  const float *decay, *bias, *skip;
  const void *steps, *inputs, *gate, *into, *out;
  void* outputs;
};

// Up to 16 rows of a head, from `first` on. A row's state[size] becomes state * exp(step * decay) + step * input *
// into, and its output the product with `out`, plus input * skip, times silu(gate). `SIZE`: the size, or 0 for any.
template <class Dtype, long SIZE, bool ALIKE>
void update(const Arrays& of, const Sizes& size, long sequence, long head, long first) {
  const long left = size.width - first, row = (sequence * size.heads + head) * size.width + first;
  const auto shared = [&](const long* strides) { return head * strides[0] + first * strides[1]; };
  const auto place = [&](const long* strides) { return sequence * strides[0] + shared(strides + 1); };
  float into[MAX_SIZE], out[MAX_SIZE];
  const long group = head / (size.heads / size.groups);
  const long from = sequence * size.into[0] + group * size.into[1], to = sequence * size.out[0] + group * size.out[1];
  for (long at = 0; at < size.size; at += LANES) {
    const long rest = size.size - at;
    store<Float32>(into + at, gather<Dtype>(of.into, from + at, 1, rest), rest);
    store<Float32>(out + at, gather<Dtype>(of.out, to + at, 1, rest), rest);
  }
  f32x16 steps = gather<Dtype>(of.steps, place(size.steps), size.steps[2], left);
  if (of.bias) steps = round_to<Dtype>(steps + gather<Float32>(of.bias, shared(size.bias), size.bias[1], left));
  if (size.softplus) steps = round_to<Dtype>(softplus(steps));
  const f32x16 inputs = gather<Dtype>(of.inputs, place(size.inputs), size.inputs[2], left), scales = steps * inputs;
  const float* decay = of.decay + shared(size.decay);
  const long count = SIZE ? SIZE : size.size, whole = count / WIDTH * WIDTH;
  f32x16 factors = {}, sums[LANES] = {};
  if (ALIKE) factors = vector_exp(steps * gather<Float32>(decay, 0, size.decay[1], left));
  for (long lane = 0; lane < std::min(LANES, left); lane++) {
    float* state = of.state + (row + lane) * count;
    const float* own = decay + lane * size.decay[1];
    const floats step = floats{} + steps[lane], scale = floats{} + scales[lane], factor = floats{} + factors[lane];
    floats sum = {};
    // WIDTH numbers of the row's state, or the `rest` that remain: a constant where it is WIDTH, for loads in one
    // piece.
    const auto advance = [&](long at, long rest) __attribute__((always_inline)) {
      const auto part = [&](const float* numbers) __attribute__((always_inline)) {
        floats found = {};
        std::memcpy(&found, numbers + at, rest * sizeof *numbers);
        return found;
      };
      __builtin_prefetch(state + at + DISTANCE, 1, 2);
      const floats now = part(state) * (ALIKE ? factor : register_exp(part(own) * step)) + scale * part(into);
      std::memcpy(state + at, &now, rest * sizeof *state);
      sum += now * part(out);
    };
    for (long at = 0; at < whole; at += WIDTH) advance(at, WIDTH);
    if (whole < count) advance(whole, count - whole);
    std::memcpy(sums + lane, &sum, sizeof sum);
  }
  f32x16 outputs = sum_each(sums);
  if (of.skip) outputs += inputs * gather<Float32>(of.skip, shared(size.skip), size.skip[1], left);
  if (of.gate) {
    const f32x16 gate = gather<Dtype>(of.gate, place(size.gate), size.gate[2], left);
    outputs *= round_to<Dtype>(gated::Silu::of(gate));
  }
  store<Dtype>(static_cast<typename Dtype::scalar*>(of.outputs) + row, outputs, left);
}

template <class Dtype>
void update_all(const Arrays& of, const Sizes& size) {
  const auto rows = size.alike        ? update<Dtype, 0, true>
                    : size.size == 16 ? update<Dtype, 16, false>
                                      : update<Dtype, 0, false>;
#pragma omp parallel for num_threads(size.threads) collapse(3)
  for (long sequence = 0; sequence < size.sequences; sequence++)
    for (long head = 0; head < size.heads; head++)
      for (long first = 0; first < size.width; first += LANES) rows(of, size, sequence, head, first);
}

}  // namespace

// state[sequences, heads, width, size], decay[heads, width, size], or without `size` if `alike`, bias and skip[heads,
// width] in float32; steps, inputs, gate and outputs[sequences, heads, width], into and out[sequences, groups, size].
// bias, skip and gate may be null. All but states and outputs have strides.
#define SELECTIVE_STATE_UPDATE(name, dtype)                                                                       \
  extern "C" void name(float* state, const float* decay, const float* bias, const float* skip, const void* steps, \
                       const void* inputs, const void* gate, const void* into, const void* out, void* outputs,    \
                       const Sizes* sizes) {                                                                      \
    update_all<dtype>({state, decay, bias, skip, steps, inputs, gate, into, out, outputs}, *sizes);               \
  }
SELECTIVE_STATE_UPDATE(selective_state_update_float32, Float32)
SELECTIVE_STATE_UPDATE(selective_state_update_bfloat16, BFloat16)
