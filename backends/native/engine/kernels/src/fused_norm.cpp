// rms_norm_*: rows of an RMS norm; rms_norm_once_*: the same with a weight in float32, rounded once; rms_norm_silu_*
// and rms_norm_sigmoid_*: times a gate. See rms_norm.h.
#include "gated_activation.h"
#include "rms_norm.h"

constexpr long SERIAL = 1 << 15;  // up to so many numbers, one thread ends before the others would have woken

#define RMS_NORM(name, ...)                                                                                       \
  extern "C" void name(const void* rows, const void* weight, void* normed, long count, long width, float epsilon, \
                       int threads) {                                                                             \
    _Pragma("omp parallel num_threads(threads) if (count * width > SERIAL)")                                      \
        rms_norm::norm_rows<__VA_ARGS__>(rows, weight, normed, count, width, epsilon);                            \
  }
RMS_NORM(rms_norm_float32, Float32)
RMS_NORM(rms_norm_bfloat16, BFloat16)
RMS_NORM(rms_norm_once_float32, Float32, Float32)
RMS_NORM(rms_norm_once_bfloat16, BFloat16, Float32)

#define GATED_NORM(name, ...)                                                                                        \
  extern "C" void name(const void* rows, const void* gate, const void* weight, void* normed, long count, long width, \
                       float epsilon, int threads) {                                                                 \
    _Pragma("omp parallel num_threads(threads) if (count * width > SERIAL)")                                         \
        rms_norm::gated_norm_rows<__VA_ARGS__>(rows, gate, weight, normed, count, width, epsilon);                   \
  }
GATED_NORM(rms_norm_silu_float32, Float32, gated::Silu, false)
GATED_NORM(rms_norm_silu_bfloat16, BFloat16, gated::Silu, false)
GATED_NORM(rms_norm_sigmoid_float32, Float32, gated::Sigmoid, true)
GATED_NORM(rms_norm_sigmoid_bfloat16, BFloat16, gated::Sigmoid, true)
