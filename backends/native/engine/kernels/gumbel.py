"""Gumbel noise on CPUs, compiled: one pass over a row where torch takes some twenty.

The same as `noise.gumbel`, which it stands in for, but for the last bits of its logarithms.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Routine, routine


def add_noise(scores: Tensor, low: Tensor, high: Tensor) -> bool:
    """Add each row's noise to its scores, in place; False if it cannot.

    Args:
        scores: [rows, vocabulary].
        low: [rows] int32, the lower halves of the rows' keys.
        high: the upper ones.
    """
    function = _function() if scores.device.type == "cpu" else None
    if function is None or scores.dtype != torch.float32 or not scores.is_contiguous():
        return False
    keys = torch.stack((low, high), dim=1)
    function(scores.data_ptr(), keys.data_ptr(), *scores.shape, torch.get_num_threads())
    return True


@cache
def _function() -> Routine | None:
    pointers, sizes = [ctypes.c_void_p] * 2, [ctypes.c_long] * 2
    return routine("gumbel", _SOURCE, "add_noise", *pointers, *sizes, ctypes.c_int)


_SOURCE = r"""
constexpr long STRETCH = 1 << 14;  // tokens that one thread takes at a time
constexpr words LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// MurmurHash3's 32-bit finaliser.
inline words mix(words value) {
  value = (value ^ (value >> 16)) * 0x85ebca6bu;
  value = (value ^ (value >> 13)) * 0xc2b2ae35u;
  return value ^ (value >> 16);
}

// Cephes' logf: of a number between the roots of 1/2 and 2 a polynomial, and its power of two. Not for 0 and less.
inline floats logarithm(floats x) {
  const integers bits = (integers)x;
  integers power = (bits >> 23) - 126;
  floats part = (floats)((bits & 0x007fffff) | 0x3f000000);  // from 1/2 to 1
  const integers small = part < 0.707106781186547524f;
  power += small;  // -1 where it is
  part = (small ? part + part : part) - 1.0f;
  const floats square = part * part, whole = __builtin_convertvector(power, floats);
  floats p = part * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * part + 1.1676998740e-1f;
  p = p * part - 1.2420140846e-1f;
  p = p * part + 1.4249322787e-1f;
  p = p * part - 1.6668057665e-1f;
  p = p * part + 2.0000714765e-1f;
  p = p * part - 2.4999993993e-1f;
  p = p * part + 3.3333331174e-1f;
  p = p * part * square + whole * -2.12194440e-4f - 0.5f * square;
  return part + p + whole * 0.693359375f;
}

// -log(-log(1 - u)) of 32 bits as a uniform number between 0 and 1.
inline floats gumbel(words bits) {
  const floats uniform = (__builtin_convertvector(bits, floats) + 0.5f) * 0x1p-32f, most = floats{} + (1.0f - 0x1p-24f);
  const floats u = uniform < most ? uniform : most, rest = 1.0f - u;
  // 1 - u has lost what u has of small numbers: what is lost of its logarithm is known (Kahan).
  const floats logs = rest == 1.0f ? u : logarithm(rest) * u / (rest - 1.0f);
  return -logarithm(logs);
}

extern "C" void add_noise(float* scores, const uint32_t* keys, long rows, long count, int threads) {
  const long stretches = (count + STRETCH - 1) / STRETCH;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long part = 0; part < rows * stretches; part++) {
    const long row = part / stretches, first = part % stretches * STRETCH, end = std::min(count, first + STRETCH);
    const uint32_t low = keys[2 * row], high = keys[2 * row + 1];
    for (long at = first; at < end; at += LANES) {
      float* target = scores + row * count + at;
      const long left = end - at;
      const floats score = read<Float32>(target, left);
      if (!any(score > -INFINITY)) continue;
      write<Float32>(target, score + gumbel(mix(mix(LANE + (uint32_t)at + low) ^ high)), left);
    }
  }
}
"""
