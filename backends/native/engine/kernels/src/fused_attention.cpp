// rotate_and_store_*: see rotary.h.
#include "rotary.h"

constexpr long SERIAL = 1 << 13;  // up to so many numbers, one thread ends before the others would have woken

#define ROTATE_AND_STORE(name, dtype)                                                                    \
  extern "C" void name(void* joined, const void* cosines, const void* sines, const void* query_norm,     \
                       const void* key_norm, const int64_t* slots, void* keys, void* values,             \
                       const rotary::Sizes* sizes, float epsilon) {                                      \
    const rotary::Sizes size = *sizes;                                                                   \
    const long all = size.tokens * (size.heads + 2 * size.key_heads) * size.width;                       \
    _Pragma("omp parallel num_threads(size.threads) if (all > SERIAL)") rotary::rotate_and_store<dtype>( \
        joined, cosines, sines, query_norm, key_norm, slots, keys, values, size, epsilon);               \
  }
ROTATE_AND_STORE(rotate_and_store_float32, Float32)
ROTATE_AND_STORE(rotate_and_store_bfloat16, BFloat16)
