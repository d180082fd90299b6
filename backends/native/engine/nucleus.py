"""Nucleus sampling's filter on CPUs, compiled: one pass over a row to weigh its tokens, one to drop those outside.

The same as `filters.top_p`, which it stands in for: sums are kept in float64 here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.compiled import load


def keep_nucleus(scores: Tensor, mass: Tensor) -> bool:
    """Put -inf in place of all but the highest scores whose probabilities together reach `mass`; False if it cannot.

    Args:
        scores: [rows, vocabulary].
        mass: [rows, 1].
    """
    function = _function() if scores.device.type == "cpu" else None
    if function is None or scores.dtype != torch.float32 or not scores.is_contiguous():
        return False
    masses = mass.float().contiguous()
    function(scores.data_ptr(), masses.data_ptr(), *scores.shape, torch.get_num_threads())
    return True


@cache
def _function() -> Callable[..., None] | None:
    library = load("nucleus", _SOURCE)
    if library is None:
        return None
    function = library["keep_nucleus"]
    function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2 + [ctypes.c_int]
    function.restype = None
    return function


# Tokens are sorted into bins by how far they are below the highest, and then only those of the bin in which the mass
# is reached. Beyond the last bin's beginning a probability is below 2e-14 of the highest.
_SOURCE = r"""
#include <vector>

constexpr int BINS = 2048;
constexpr float BINS_EACH = BINS / 32.0f;

inline int bin_of(float below) { return (int)std::min(below * BINS_EACH, BINS - 1.0f); }

inline float weigh(const float* row, long count, float highest, double* bins) {
  float below[LANES], weights[LANES];
  double sum = 0;
  for (long at = 0; at < count; at += LANES) {
    const long some = std::min(LANES, count - at);
    floats part = floats{} - INFINITY;
    std::memcpy(&part, row + at, some * sizeof *row);
    const floats distance = highest - part, weight = exponential(floats{} - distance);
    std::memcpy(below, &distance, sizeof below);
    std::memcpy(weights, &weight, sizeof weights);
    for (long j = 0; j < some; j++) {
      sum += weights[j];
      if (weights[j] > 0) bins[bin_of(below[j])] += weights[j];
    }
  }
  return sum;
}

float least_kept(const float* row, long count, float mass) {
  double bins[BINS] = {}, reached = 0;
  const float highest = *std::max_element(row, row + count);
  const double wanted = (double)mass * weigh(row, count, highest, bins);
  int last = -1;
  for (int bin = 0; bin < BINS && reached < wanted; bin++)
    if (bins[bin] > 0) reached += bins[last = bin];
  if (last < 0) return -INFINITY;  // nothing is wanted, or what is there is no number
  reached -= bins[last];
  std::vector<float> held;
  for (long j = 0; j < count; j++)
    if (row[j] <= highest && row[j] > -INFINITY && bin_of(highest - row[j]) == last) held.push_back(row[j]);
  std::sort(held.begin(), held.end(), [](float left, float right) { return left > right; });
  for (const float value : held)
    if ((reached += std::exp((double)value - highest)) >= wanted) return value;
  return held.empty() ? -INFINITY : held.back();
}

extern "C" void keep_nucleus(float* scores, const float* masses, long rows, long count, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
  for (long row = 0; row < rows; row++) {
    float* each = scores + row * count;
    const float least = least_kept(each, count, masses[row]);
    for (long j = 0; j < count; j++) each[j] = each[j] < least ? -INFINITY : each[j];
  }
}
"""
