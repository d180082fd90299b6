// The middle of a gated feed-forward layer: activation(gate) * up, rounded where the modules round.
#pragma once

#include "simd.h"

namespace gated {

inline f32x16 sigmoid(f32x16 x) {
  const f32x16 highest = f32x16{} + 87.0f;  // exp of more is infinite
  return 1.0f / (1.0f + vector_exp(if_less(highest, -x, highest, -x)));
}

struct Sigmoid {
  static f32x16 of(f32x16 x) { return sigmoid(x); }
};

struct Silu {
  static f32x16 of(f32x16 x) { return x * sigmoid(x); }
};

// GELU by its tanh approximation: (1 + tanh(y)) / 2 is sigmoid(2 y).
struct Gelu {
  static f32x16 of(f32x16 x) { return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }
};

// joined[rows, 2 * width], gates before ups, to gated[rows, width]. Called by every thread of a parallel region.
template <class Dtype, class Activation>
void activate_and_multiply(const void* joined, void* gated, long rows, long width) {
  using scalar = typename Dtype::scalar;
#pragma omp for schedule(static)
  for (long row = 0; row < rows; row++) {
    const scalar *gates = static_cast<const scalar*>(joined) + 2 * row * width, *ups = gates + width;
    scalar* target = static_cast<scalar*>(gated) + row * width;
    for (long j = 0; j < width; j += LANES) {
      const f32x16 activated = round_to<Dtype>(Activation::of(load<Dtype>(gates + j, width - j)));
      store<Dtype>(target + j, activated * load<Dtype>(ups + j, width - j), width - j);
    }
  }
}

}  // namespace gated
