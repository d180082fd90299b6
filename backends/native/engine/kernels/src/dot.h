// Dot products over 32-bit words: a word holds one float32 or two neighbouring bfloat16.
#pragma once

#include "simd.h"

struct DotFloat32 : Float32 {
  static constexpr long PER_WORD = 1;
  // sum + a * b, lane by lane.
  static f32x16 add(f32x16 sum, u32x16 a, u32x16 b) { return sum + (f32x16)a * (f32x16)b; }
};

struct DotBFloat16 : BFloat16 {
  static constexpr long PER_WORD = 2;
  // sum + a.low * b.low + a.high * b.high, lane by lane.
  static f32x16 add(f32x16 sum, u32x16 a, u32x16 b) {
#ifdef __AVX512BF16__
    return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (f32x16)(a << 16) * (f32x16)(b << 16);
    return sum + (f32x16)(a & 0xffff0000u) * (f32x16)(b & 0xffff0000u);
#endif
  }
};
