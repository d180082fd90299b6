// paged_decode_*: see paged_decode.h.
#include "paged_decode.h"

#define PAGED_DECODE(name, kind)                                                                                    \
  extern "C" void name(const void* queries, const void* keys, const void* values, const float* key_scales,          \
                       const float* value_scales, void* output, const int64_t* tokens, const int64_t* tables,       \
                       const int64_t* contexts, const paged_decode::Sizes* sizes, float scale) {                    \
    using Pages = paged_decode::kind;                                                                               \
    using stored = Pages::stored;                                                                                   \
    const paged_decode::Pools<Pages> pools = {static_cast<const stored*>(keys), static_cast<const stored*>(values), \
                                              key_scales, value_scales};                                            \
    _Pragma("omp parallel num_threads(sizes->threads) if (sizes->sequences * sizes->key_heads > 1)")                \
        paged_decode::attend<Pages>(queries, pools, output, tokens, tables, contexts, *sizes, scale);               \
  }
PAGED_DECODE(paged_decode_float32, SameDtype<DotFloat32>)
PAGED_DECODE(paged_decode_bfloat16, SameDtype<DotBFloat16>)
PAGED_DECODE(paged_decode_8_bits_float32, EightBits<DotFloat32>)
PAGED_DECODE(paged_decode_8_bits_bfloat16, EightBits<DotBFloat16>)
