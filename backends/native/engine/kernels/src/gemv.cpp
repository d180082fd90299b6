// gemv_*: up to MAX_ROWS rows by a packed weight. See gemm.h.
#include "gemm.h"

#define GEMV(name, dot)                                                                                                \
  extern "C" void name(const void* input, const void* packed, const void* bias, void* output, long rows, long outputs, \
                       long inputs, int threads) {                                                                     \
    _Pragma("omp parallel num_threads(threads)")                                                                       \
        gemm::multiply<dot>(input, packed, bias, nullptr, output, rows, outputs, inputs);                              \
  }
GEMV(gemv_float32, DotFloat32)
GEMV(gemv_bfloat16, DotBFloat16)
