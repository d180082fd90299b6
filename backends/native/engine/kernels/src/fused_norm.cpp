// rms_norm_*: rows of an RMS norm; rms_norm_once_*: the same with a weight in float32, rounded once. See rms_norm.h.
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
