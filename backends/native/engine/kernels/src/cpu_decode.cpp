// paged_decode_*: see paged_decode.h.
#include "paged_decode.h"

#define PAGED_DECODE(name, dot)                                                                                        \
  extern "C" void name(const void* queries, const void* keys, const void* values, void* output, const int64_t* tokens, \
                       const int64_t* tables, const int64_t* contexts, const paged_decode::Sizes* sizes,               \
                       float scale) {                                                                                  \
    _Pragma("omp parallel num_threads(sizes->threads) if (sizes->sequences * sizes->key_heads > 1)")                   \
        paged_decode::attend<dot>(queries, keys, values, output, tokens, tables, contexts, *sizes, scale);             \
  }
PAGED_DECODE(paged_decode_float32, DotFloat32)
PAGED_DECODE(paged_decode_bfloat16, DotBFloat16)
