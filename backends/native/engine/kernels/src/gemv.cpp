// gemv_*: rows by a packed weight, MAX_ROWS at a time. See gemm.h.
#include "gemm.h"

#define GEMV(name, dot)                                                                                                \
  extern "C" void name(const void* input, const void* packed, const void* bias, void* output, long rows, long outputs, \
                       long inputs, int threads) {                                                                     \
    const auto* from = static_cast<const dot::scalar*>(input);                                                         \
    auto* to = static_cast<dot::scalar*>(output);                                                                      \
    _Pragma("omp parallel num_threads(threads)") for (long row = 0; row < rows; row += gemm::MAX_ROWS)                 \
        gemm::multiply<dot>(from + row * inputs, packed, bias, nullptr, to + row * outputs,                            \
                            std::min(gemm::MAX_ROWS, rows - row), outputs, inputs);                                    \
  }
GEMV(gemv_float32, DotFloat32)
GEMV(gemv_bfloat16, DotBFloat16)

// Whether products of bfloat16 are computed in float32.
extern "C" int multiplies_in_float32() { return gemm::multiplies_in_float32(); }

// Whether bfloat16 is multiplied by instructions for matrices, and weights have the order of tiles.h.
extern "C" int multiplies_by_tiles() { return tiles::available(); }
