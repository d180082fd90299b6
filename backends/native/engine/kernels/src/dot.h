// Dot products over 32-bit words: a word holds one float32 or two neighbouring bfloat16.
//
// For vectors of any number of lanes: FLOATS and WORDS have equally many.
#pragma once

#include "simd.h"

struct DotFloat32 : Float32 {
  static constexpr long PER_WORD = 1;
  // sum + a * b, lane by lane.
  template <class FLOATS, class WORDS>
  static FLOATS add(FLOATS sum, WORDS a, WORDS b) {
    return sum + (FLOATS)a * (FLOATS)b;
  }
};

// bfloat16 by two additions of float32 products.
struct WideDotBFloat16 : BFloat16 {
  static constexpr long PER_WORD = 2;
  // sum + a.low * b.low + a.high * b.high, lane by lane.
  template <class FLOATS, class WORDS>
  static FLOATS add(FLOATS sum, WORDS a, WORDS b) {
    sum += (FLOATS)(a << 16) * (FLOATS)(b << 16);
    return sum + (FLOATS)(a & 0xffff0000u) * (FLOATS)(b & 0xffff0000u);
  }
};

// bfloat16 by the CPU's own instruction, where it has one.
#ifdef __AVX512BF16__
struct DotBFloat16 : BFloat16 {
  static constexpr long PER_WORD = 2;
  template <class FLOATS, class WORDS>
  static FLOATS add(FLOATS sum, WORDS a, WORDS b) {
    static_assert(sizeof sum == sizeof(__m512));
    return (FLOATS)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#else
using DotBFloat16 = WideDotBFloat16;
#endif
