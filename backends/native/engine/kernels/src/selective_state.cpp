// selective_state_update: one token of Mamba's recurrence (arXiv 2312.00752, 2405.21060) for many sequences.
//
// Strategy: a state is read and written once, where torch's operations pass over it nine times.
#include "simd.h"

namespace {

// The output of one row; its state[size] becomes state * exp(step * decay) + step * input * into.
float update(float* state, const float* decay, bool alike, float step, float input, const float* into, const float* out,
             long size) {
  const f32x16 scale = f32x16{} + step * input;
  f32x16 factor = vector_exp(f32x16{} + step * *decay), sum = {};
  for (long at = 0; at < size; at += LANES) {
    const long left = size - at;
    if (!alike) factor = vector_exp(load<Float32>(decay + at, left) * step);
    const f32x16 now = load<Float32>(state + at, left) * factor + scale * load<Float32>(into + at, left);
    store<Float32>(state + at, now, left);
    sum += now * load<Float32>(out + at, left);
  }
  return sum_lanes(sum);
}

}  // namespace

// All in float32: state[sequences, rows, size], decay[rows, size], or [rows] if `alike`, steps, inputs and
// outputs[sequences, rows], into and out[sequences, groups, size]. `sizes`: sequences, rows, size, groups.
extern "C" void selective_state_update(void* state, const void* decay, const void* steps, const void* inputs,
                                       const void* into, const void* out, void* outputs, const long* sizes, int alike,
                                       int threads) {
  const long sequences = sizes[0], rows = sizes[1], size = sizes[2], groups = sizes[3];
#pragma omp parallel for num_threads(threads) collapse(2)
  for (long sequence = 0; sequence < sequences; sequence++)
    for (long row = 0; row < rows; row++) {
      const long place = sequence * rows + row, shared = (sequence * groups + row / (rows / groups)) * size;
      static_cast<float*>(outputs)[place] =
          update(static_cast<float*>(state) + place * size, static_cast<const float*>(decay) + row * (alike ? 1 : size),
                 alike, static_cast<const float*>(steps)[place], static_cast<const float*>(inputs)[place],
                 static_cast<const float*>(into) + shared, static_cast<const float*>(out) + shared, size);
    }
}
