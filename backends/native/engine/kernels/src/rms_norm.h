// RMS norm: round(x / sqrt(mean(x^2) + epsilon)) * weight, rounded where Llama's module rounds. With a weight of
// another dtype than the rows the first rounding is left out, as Gemma's module does.
#pragma once

#include <type_traits>

#include "simd.h"

namespace rms_norm {

// One row of `width` numbers; `normed` may be `row`.
template <class Dtype, class Weight = Dtype>
void norm_row(const typename Dtype::scalar* row, const typename Weight::scalar* weight, typename Dtype::scalar* normed,
              long width, float epsilon) {
  f32x16 squares = {};
  for (long j = 0; j < width; j += LANES) {
    const f32x16 numbers = load<Dtype>(row + j, width - j);
    squares += numbers * numbers;
  }
  const float factor = 1.0f / std::sqrt(sum_lanes(squares) / width + epsilon);
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

}  // namespace rms_norm
