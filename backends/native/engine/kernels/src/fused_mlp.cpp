// silu_and_mul_*, gelu_and_mul_*: see gated_activation.h.
#include "gated_activation.h"

constexpr long SERIAL = 1 << 13;  // up to so many numbers, one thread ends before the others would have woken

#define ACTIVATE_AND_MULTIPLY(name, dtype, activation)                                        \
  extern "C" void name(const void* joined, void* gated, long rows, long width, int threads) { \
    _Pragma("omp parallel num_threads(threads) if (rows * width > SERIAL)")                   \
        gated::activate_and_multiply<dtype, gated::activation>(joined, gated, rows, width);   \
  }
ACTIVATE_AND_MULTIPLY(silu_and_mul_float32, Float32, Silu)
ACTIVATE_AND_MULTIPLY(silu_and_mul_bfloat16, BFloat16, Silu)
ACTIVATE_AND_MULTIPLY(gelu_and_mul_float32, Float32, Gelu)
ACTIVATE_AND_MULTIPLY(gelu_and_mul_bfloat16, BFloat16, Gelu)
