// add_gumbel_noise: the noise of sampling/gumbel.py, one pass over a row where torch takes some twenty.
//
// Its bits are those of the torch version; its logarithms may differ in the last bits.
#include "simd.h"

constexpr long CHUNK = 1 << 14;  // tokens that one thread takes at a time

// MurmurHash3's 32-bit finalizer (fmix32).
inline u32x16 fmix32(u32x16 value) {
  value = (value ^ (value >> 16)) * 0x85ebca6bu;
  value = (value ^ (value >> 13)) * 0xc2b2ae35u;
  return value ^ (value >> 16);
}

// logf of Cephes: x = 2^n * m with m between the roots of 1/2 and 2, log(m) by a polynomial. Not for 0 and below.
inline f32x16 vector_log(f32x16 x) {
  const i32x16 bits = (i32x16)x;
  i32x16 exponent = (bits >> 23) - 126;
  f32x16 m = (f32x16)((bits & 0x007fffff) | 0x3f000000);  // from 1/2 to 1
  const f32x16 root = f32x16{} + 0.707106781186547524f;
  exponent += less(m, root);  // a true lane is -1
  m = if_less(m, root, m + m, m) - 1.0f;
  const f32x16 square = m * m, n = __builtin_convertvector(exponent, f32x16);
  f32x16 p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * square + n * -2.12194440e-4f - 0.5f * square;
  return m + p + n * 0.693359375f;
}

// -log(-log(1 - u)) for 32 random bits as a uniform number u between 0 and 1.
inline f32x16 gumbel(u32x16 bits) {
  const f32x16 uniform = (__builtin_convertvector(bits, f32x16) + 0.5f) * 0x1p-32f;
  const f32x16 most = f32x16{} + (1.0f - 0x1p-24f);
  const f32x16 u = if_less(uniform, most, uniform, most), rest = 1.0f - u;
  // log1p(-u) after Kahan: log(rest) * u / (rest - 1) cancels the rounding of 1 - u for small u.
  const f32x16 logs = if_equal(rest, f32x16{} + 1.0f, u, vector_log(rest) * u / (rest - 1.0f));
  return -vector_log(logs);
}

// scores[rows, count] += noise, in place; keys[rows, 2] are the lower and upper halves of the rows' keys.
extern "C" void add_gumbel_noise(float* scores, const uint32_t* keys, long rows, long count, int threads) {
  const long chunks = (count + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long part = 0; part < rows * chunks; part++) {
    const long row = part / chunks, first = part % chunks * CHUNK, end = std::min(count, first + CHUNK);
    const uint32_t low = keys[2 * row], high = keys[2 * row + 1];
    for (long at = first; at < end; at += LANES) {
      float* target = scores + row * count + at;
      const long left = end - at;
      const f32x16 score = load<Float32>(target, left);
      if (!any(less(f32x16{} - INFINITY, score))) continue;  // masked tokens need no noise
      store<Float32>(target, score + gumbel(fmix32(fmix32((u32x16)LANE_INDEX + (uint32_t)at + low) ^ high)), left);
    }
  }
}
