// RMS norm: round(x / sqrt(mean(x^2) + epsilon)) * weight, rounded where Llama's module rounds. With a weight of
// another dtype than the rows the first rounding is left out, as Gemma's module does.
#pragma once

#include <type_traits>

#include "simd.h"

namespace rms_norm {

// What the numbers of a row are multiplied by before its weight.
template <class Dtype>
float factor_of(const typename Dtype::scalar* row, long width, float epsilon) {
  f32x16 squares = {};
  for (long j = 0; j < width; j += LANES) {
    const f32x16 numbers = load<Dtype>(row + j, width - j);
    squares += numbers * numbers;
  }
  return 1.0f / std::sqrt(sum_lanes(squares) / width + epsilon);
}

// One row of `width` numbers; `normed` may be `row`.
template <class Dtype, class Weight = Dtype>
void norm_row(const typename Dtype::scalar* row, const typename Weight::scalar* weight, typename Dtype::scalar* normed,
              long width, float epsilon) {
  const float factor = factor_of<Dtype>(row, width, epsilon);
  for (long j = 0; j < width; j += LANES) {
    f32x16 scaled = load<Dtype>(row + j, width - j) * factor;
    if (std::is_same_v<Dtype, Weight>) scaled = round_to<Dtype>(scaled);
    store<Dtype>(normed + j, load<Weight>(weight + j, width - j) * scaled, width - j);
  }
}

// [count, width] rows. Called by every thread of a parallel region.
template <class Dtype, class Weight = Dtype>
void norm_rows(const void* rows, const void* weight, void* normed, long count, long width, float epsilon) {
  using scalar = typename Dtype::scalar;
#pragma omp for schedule(static)
  for (long row = 0; row < count; row++)
    norm_row<Dtype, Weight>(static_cast<const scalar*>(rows) + row * width,
                            static_cast<const typename Weight::scalar*>(weight),
                            static_cast<scalar*>(normed) + row * width, width, epsilon);
}

// [count, width] rows, whose norms are multiplied by activation(gate) of the same shape. `ONCE`: whether the product of
// all is rounded once, as Kimi Linear's module does, and not each, as Qwen's. Called by every thread of a parallel
// region.
template <class Dtype, class Activation, bool ONCE>
void gated_norm_rows(const void* rows, const void* gate, const void* weight, void* normed, long count, long width,
                     float epsilon) {
  using scalar = typename Dtype::scalar;
  const auto round = [](f32x16 numbers) { return ONCE ? numbers : round_to<Dtype>(numbers); };
  const auto* by = static_cast<const scalar*>(weight);
#pragma omp for schedule(static)
  for (long at = 0; at < count; at++) {
    const scalar *row = static_cast<const scalar*>(rows) + at * width,
                 *gates = static_cast<const scalar*>(gate) + at * width;
    const float factor = factor_of<Dtype>(row, width, epsilon);
    for (long j = 0; j < width; j += LANES) {
      const long left = width - j;
      const f32x16 scaled = round(load<Dtype>(by + j, left) * round(load<Dtype>(row + j, left) * factor));
      store<Dtype>(static_cast<scalar*>(normed) + at * width + j, scaled * Activation::of(load<Dtype>(gates + j, left)),
                   left);
    }
  }
}

}  // namespace rms_norm
