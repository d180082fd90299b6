// Vectors of 16 lanes, and the conversions between float32 arithmetic and the dtypes in memory.
//
// The vectors are the compiler's own (vector_size), not one CPU's intrinsics: GCC maps a 64-byte vector to one AVX-512
// register, two AVX2 registers or four NEON registers. Intrinsics stand only where GCC splits a vector that AVX-512
// would take in one instruction.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

// GCC warns that 64-byte arguments are passed differently without AVX-512; here none crosses a library's border.
#pragma GCC diagnostic ignored "-Wpsabi"

constexpr long LANES = 16;
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

// A vector that is one register: of wider ones GCC keeps no sums in registers.
#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
typedef float floats __attribute__((vector_size(REGISTER)));
typedef uint32_t words __attribute__((vector_size(REGISTER)));
typedef int32_t ints __attribute__((vector_size(REGISTER)));

constexpr int REGISTERS = 64 / REGISTER;  // of a vector of 16 lanes

// A vector's registers, which are a `REGISTER_TYPE` each.
template <class REGISTER_TYPE>
struct Parts {
  REGISTER_TYPE of[REGISTERS];
  template <class VECTOR>
  explicit Parts(const VECTOR& vector) {
    std::memcpy(of, &vector, sizeof of);
  }
};

// A function of registers, of each register of vectors in turn: comparisons and choices of wider vectors GCC makes lane
// by lane.
template <class FUNCTION, class... VECTORS>
inline __attribute__((always_inline)) auto by_registers(FUNCTION of, const VECTORS&... vectors) {
  const auto part = [](const auto& vector, int at) __attribute__((always_inline)) {
    typedef std::decay_t<decltype(vector[0])> part_of __attribute__((vector_size(REGISTER)));
    part_of found;
    std::memcpy(&found, reinterpret_cast<const char*>(&vector) + at * REGISTER, REGISTER);
    return found;
  };
  typedef std::decay_t<decltype(of(part(vectors, 0)...)[0])> whole __attribute__((vector_size(64)));
  whole made;
  for (int at = 0; at < 64 / REGISTER; at++) {
    const auto found = of(part(vectors, at)...);
    std::memcpy(reinterpret_cast<char*>(&made) + at * REGISTER, &found, REGISTER);
  }
  return made;
}

constexpr i32x16 LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The lanes of `first` and `second`, those of `first` first: every other one from the first on, and from the second on;
// and lanes of both in turn, the lower halves' and the upper ones'. GCC and Clang have different words for it.
#ifdef __clang__
#define SHUFFLE(name, ...)                                      \
  template <class VECTOR>                                       \
  VECTOR name(VECTOR first, VECTOR second) {                    \
    return __builtin_shufflevector(first, second, __VA_ARGS__); \
  }
#else
#define SHUFFLE(name, ...)                                        \
  template <class VECTOR>                                         \
  VECTOR name(VECTOR first, VECTOR second) {                      \
    return __builtin_shuffle(first, second, i32x16{__VA_ARGS__}); \
  }
#endif
SHUFFLE(even_lanes, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
SHUFFLE(odd_lanes, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
SHUFFLE(interleave_lower, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
SHUFFLE(interleave_upper, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The sum of all lanes, as a tree: halves, quarters, pairs.
inline float sum_lanes(f32x16 values) {
  f32x8 halves[2];
  std::memcpy(halves, &values, sizeof halves);
  const f32x8 half = halves[0] + halves[1];
  f32x4 quarters[2];
  std::memcpy(quarters, &half, sizeof quarters);
  const f32x4 quarter = quarters[0] + quarters[1];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// The lanes in which a < b, as all ones; `yes` in those, `no` in the others; `yes` where a is b, `no` in the others.
inline i32x16 less(f32x16 a, f32x16 b) {
  return by_registers([](floats a, floats b) { return (ints)(a < b); }, a, b);
}
inline f32x16 if_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  return by_registers([](floats a, floats b, floats yes, floats no) { return a < b ? yes : no; }, a, b, yes, no);
}
inline f32x16 if_equal(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  return by_registers([](floats a, floats b, floats yes, floats no) { return a == b ? yes : no; }, a, b, yes, no);
}

// The nearest whole number, for |x| < 2^22; x * 2^n for a whole n from -126 to 127; and the square root.
#ifdef __AVX512F__
inline floats nearest(floats x) { return (floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
inline floats scale_by_power(floats x, floats n) { return (floats)_mm512_scalef_ps((__m512)x, (__m512)n); }
inline floats register_root(floats x) { return (floats)_mm512_sqrt_ps((__m512)x); }
#else
inline floats nearest(floats x) { return (x + 0x1.8p23f) - 0x1.8p23f; }  // floats of that size are whole
inline floats scale_by_power(floats x, floats n) {
  return x * (floats)((__builtin_convertvector(n, ints) + 127) << 23);
}
inline floats register_root(floats x) {
#ifdef __AVX2__
  return (floats)_mm256_sqrt_ps((__m256)x);
#else
  for (int lane = 0; lane < REGISTER / (int)sizeof(float); lane++) x[lane] = std::sqrt(x[lane]);
  return x;
#endif
}
#endif
inline f32x16 square_root(f32x16 x) {
  return by_registers([](floats x) { return register_root(x); }, x);
}

// expf of Cephes: exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, exp(r) by a polynomial. NaN stays NaN; below -87: 0.
inline floats register_exp(floats x) {
  const floats lowest = floats{} - 87.0f, clamped = x < lowest ? lowest : x;
  const floats n = nearest(clamped * 1.44269504088896341f);          // x / ln(2)
  const floats r = clamped - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts: the product stays exact
  floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return x < lowest ? floats{} : scale_by_power(p, n);
}
inline f32x16 vector_exp(f32x16 x) {
  return by_registers([](floats x) { return register_exp(x); }, x);
}

// 2^x = 2^n * 2^r with |r| <= 1/2, 2^r by a polynomial of relative error 2e-9 (minimax). For x below 127; NaN stays
// NaN; below -126: 0.
inline floats register_exp2(floats x) {
  const floats n = nearest(x), r = x - n;
  floats p = r * 1.5353362e-4f + 1.33988739e-3f;
  p = p * r + 9.6184369e-3f;
  p = p * r + 5.5503324e-2f;
  p = p * r + 2.4022648e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.0f;
  return x < floats{} - 126.0f ? floats{} : scale_by_power(p, n);
}
inline f32x16 vector_exp2(f32x16 x) {
  return by_registers([](floats x) { return register_exp2(x); }, x);
}

#ifdef __AVX512F__
inline bool any(i32x16 mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask); }
inline u32x16 zero_extend(u16x16 values) { return (u32x16)_mm512_cvtepu16_epi32((__m256i)values); }
inline u16x16 truncate(u32x16 values) { return (u16x16)_mm512_cvtepi32_epi16((__m512i)values); }
inline i32x16 widen_bytes(u8x16 values) { return (i32x16)_mm512_cvtepu8_epi32((__m128i)values); }
inline i32x16 widen_bytes(i8x16 values) { return (i32x16)_mm512_cvtepi8_epi32((__m128i)values); }
#else
inline bool any(i32x16 mask) {
  uint64_t pairs[LANES / 2], found = 0;
  std::memcpy(pairs, &mask, sizeof pairs);
  for (const uint64_t pair : pairs) found |= pair;
  return found;
}
inline u32x16 zero_extend(u16x16 values) { return __builtin_convertvector(values, u32x16); }
inline u16x16 truncate(u32x16 values) { return __builtin_convertvector(values, u16x16); }
// In two steps: GCC takes one from 8 bits to 32 lane by lane.
template <class BYTES>
i32x16 widen_bytes(BYTES values) {
  return __builtin_convertvector(__builtin_convertvector(values, i16x16), i32x16);
}
#endif
inline f32x16 to_float(i32x16 numbers) { return __builtin_convertvector(numbers, f32x16); }

// A dtype: how one number (scalar) and LANES numbers (vector) lie in memory, and how they become float32 and back.

struct Float32 {
  using scalar = float;
  using vector = f32x16;
  static float widen(scalar value) { return value; }
  static f32x16 widen(vector values) { return values; }
  static scalar narrow(float value) { return value; }
  static vector narrow(f32x16 values) { return values; }
};

struct BFloat16 {
  using scalar = uint16_t;
  using vector = u16x16;
  static float widen(scalar value) { return bits_to_float((uint32_t)value << 16); }
  static f32x16 widen(vector values) { return (f32x16)(zero_extend(values) << 16); }
  // Round to nearest, ties to even, as torch does; NaN becomes the quiet NaN 0x7fc0.
  static scalar narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  static vector narrow(f32x16 values) {
    return truncate(by_registers(
        [](floats values) {
          const words bits = (words)values, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
          return values != values ? words{} + 0x7fc0 : rounded;
        },
        values));
  }
};

// LANES numbers at `from`, or the `left` that remain of a row; the other lanes are 0.
template <class Dtype>
f32x16 load(const typename Dtype::scalar* from, long left) {
  typename Dtype::vector values = {};
  if (left >= LANES)
    std::memcpy(&values, from, sizeof values);
  else
    std::memcpy(&values, from, left * sizeof *from);
  return Dtype::widen(values);
}

// The first min(LANES, left) of `numbers` to `to`.
template <class Dtype>
void store(typename Dtype::scalar* to, f32x16 numbers, long left) {
  const typename Dtype::vector values = Dtype::narrow(numbers);
  if (left >= LANES)
    std::memcpy(to, &values, sizeof values);
  else
    std::memcpy(to, &values, left * sizeof *to);
}

// What `values` would be after a store and a load: fused code must round where the separate modules round.
template <class Dtype>
f32x16 round_to(f32x16 values) {
  return Dtype::widen(Dtype::narrow(values));
}
