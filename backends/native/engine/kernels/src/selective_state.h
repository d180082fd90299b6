// One token of Mamba's recurrence (arXiv 2312.00752, 2405.21060) for many sequences.
//
// Strategy: a state is read and written once, where torch's operations pass over it nine times. What comes before and
// after for each row (step sizes, gates) is computed for 16 rows at once, and for ROWS before the next row's state.
#pragma once

#include "gated_activation.h"

namespace selective_state {

constexpr long MAX_SIZE = 256;   // MAX_SIZE of selective_state.py
constexpr long ROWS = 64;        // of a head that are computed together
constexpr long DISTANCE = 1024;  // numbers of the states that are prefetched ahead
constexpr long WIDTH = REGISTER / sizeof(float);
constexpr float LOG2_E = 1.44269504088896341f;

// Strides are of a sequence, a head and a row of a head; of `into` and `out`, of a sequence and a group of heads.
struct Sizes {
  long sequences, heads, width, size, groups, softplus, alike;
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

// Up to ROWS rows of a head, from `first` on. A row's state[size] becomes state * exp(step * decay) + step * input *
// into, and its output the product with `out`, plus input * skip, times silu(gate). `SIZE`: the size, or 0 for any.
template <class Dtype, long SIZE, bool ALIKE>
void update(const Arrays& of, const Sizes& size, long sequence, long head, long first) {
  const long rows = std::min(ROWS, size.width - first), row = (sequence * size.heads + head) * size.width + first;
  // LANES numbers of the rows from `at` on: of an array of all sequences, or of one that they share.
  const auto own = [&](const void* numbers, const long* strides, long at) {
    const long place = sequence * strides[0] + head * strides[1] + (first + at) * strides[2];
    return gather<Dtype>(numbers, place, strides[2], rows - at);
  };
  const auto shared = [&](const float* numbers, const long* strides, long at) {
    return gather<Float32>(numbers, head * strides[0] + (first + at) * strides[1], strides[1], rows - at);
  };
  float into[MAX_SIZE], out[MAX_SIZE];
  const long group = head / (size.heads / size.groups);
  const long from = sequence * size.into[0] + group * size.into[1], to = sequence * size.out[0] + group * size.out[1];
  for (long at = 0; at < size.size; at += LANES) {
    const long rest = size.size - at;
    store<Float32>(into + at, gather<Dtype>(of.into, from + at, 1, rest), rest);
    store<Float32>(out + at, gather<Dtype>(of.out, to + at, 1, rest), rest);
  }
  // Of all rows at first: each of these functions is a chain, so several vectors take little longer than one.
  f32x16 inputs[ROWS / LANES], scales[ROWS / LANES], powers[ROWS / LANES];
  for (long part = 0, at = 0; at < rows; part++, at += LANES) {
    f32x16 steps = own(of.steps, size.steps, at);
    if (of.bias) steps = round_to<Dtype>(steps + shared(of.bias, size.bias, at));
    if (size.softplus) steps = round_to<Dtype>(softplus(steps));
    inputs[part] = own(of.inputs, size.inputs, at);
    scales[part] = steps * inputs[part];
    powers[part] = steps * LOG2_E;
    if (ALIKE) powers[part] = vector_exp2(powers[part] * shared(of.decay, size.decay, at));
  }
  const auto *scale = reinterpret_cast<const float*>(scales), *power = reinterpret_cast<const float*>(powers);
  const long count = SIZE ? SIZE : size.size, whole = count / WIDTH * WIDTH;
  float* state = of.state + row * count;
  const float* decay = of.decay + head * size.decay[0] + first * size.decay[1];
  f32x16 outputs[ROWS / LANES];
  for (long at = 0; at < rows; at += LANES) {
    f32x16 sums[LANES] = {};
    for (long lane = 0; lane < std::min(LANES, rows - at); lane++, state += count, decay += size.decay[1]) {
      const floats added = floats{} + scale[at + lane], by = floats{} + power[at + lane];
      floats sum = {};
      // WIDTH numbers of the row's state, or the `rest` that remain: a constant where it is WIDTH, for loads in one
      // piece.
      const auto advance = [&](long k, long rest) __attribute__((always_inline)) {
        const auto part = [&](const float* numbers) __attribute__((always_inline)) {
          floats found = {};
          std::memcpy(&found, numbers + k, rest * sizeof *numbers);
          return found;
        };
        __builtin_prefetch(state + k + DISTANCE, 1, 2);
        const floats now = part(state) * (ALIKE ? by : register_exp2(part(decay) * by)) + added * part(into);
        std::memcpy(state + k, &now, rest * sizeof *state);
        sum += now * part(out);
      };
      for (long k = 0; k < whole; k += WIDTH) advance(k, WIDTH);
      if (whole < count) advance(whole, count - whole);
      std::memcpy(sums + lane, &sum, sizeof sum);
    }
    outputs[at / LANES] = sum_each(sums);
  }
  for (long part = 0, at = 0; at < rows; part++, at += LANES) {
    if (of.skip) outputs[part] += inputs[part] * shared(of.skip, size.skip, at);
    if (of.gate) outputs[part] *= round_to<Dtype>(gated::Silu::of(own(of.gate, size.gate, at)));
    store<Dtype>(static_cast<typename Dtype::scalar*>(of.outputs) + row + at, outputs[part], rows - at);
  }
}

// state[sequences, heads, width, size], decay[heads, width, size], or without `size` if `alike`, bias and skip[heads,
// width] in float32; steps, inputs, gate and outputs[sequences, heads, width], into and out[sequences, groups, size].
// bias, skip and gate may be null. All but states and outputs have strides. Called by every thread of a parallel
// region.
template <class Dtype>
void update_all(const Arrays& of, const Sizes& size) {
  const auto rows = size.alike        ? update<Dtype, 0, true>
                    : size.size == 16 ? update<Dtype, 16, false>
                                      : update<Dtype, 0, false>;
#pragma omp for collapse(3)
  for (long sequence = 0; sequence < size.sequences; sequence++)
    for (long head = 0; head < size.heads; head++)
      for (long first = 0; first < size.width; first += ROWS) rows(of, size, sequence, head, first);
}

}  // namespace selective_state
