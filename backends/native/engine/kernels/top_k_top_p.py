"""The filters top_k and top_p on CPUs, compiled: a row's tokens are weighed in one pass, and few are looked at again.

The same as `filters.top_k` and `filters.top_p` one after the other, which it stands in for: sums are in float64 here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Routine, routine


def keep_likeliest(scores: Tensor, counts: Sequence[int], masses: Sequence[float]) -> bool:
    """Put -inf in place of all but each row's `counts` highest scores, and then of all but the highest of those whose
    probabilities together reach `masses`; False if it cannot.

    Args:
        scores: [rows, vocabulary].
        counts: one a row; 0: all.
        masses: one a row; 1 or more: all.
    """
    function = _function() if scores.device.type == "cpu" else None
    if function is None or scores.dtype != torch.float32 or not scores.is_contiguous():
        return False
    most, mass = torch.tensor(counts, dtype=torch.int64), torch.tensor(masses, dtype=torch.float32)
    function(scores.data_ptr(), most.data_ptr(), mass.data_ptr(), *scores.shape, torch.get_num_threads())
    return True


@cache
def _function() -> Routine | None:
    pointers, sizes = [ctypes.c_void_p] * 3, [ctypes.c_long] * 2
    return routine("likeliest", _SOURCE, "keep_likeliest", *pointers, *sizes, ctypes.c_int)


# Tokens are sorted into bins by how far they are below the highest, and then only those of the bin in which the mass
# is reached. Beyond the last bin's beginning a probability is below 2e-14 of the highest.
_SOURCE = r"""
#include <functional>
#include <vector>

constexpr int BINS = 2048;
constexpr float BINS_EACH = BINS / 32.0f;

inline int bin_of(float below) { return (int)std::min(below * BINS_EACH, BINS - 1.0f); }

inline floats read_row(const float* row, long at, long count) {
  floats part = floats{} - INFINITY;
  std::memcpy(&part, row + at, std::min(LANES, count - at) * sizeof *row);
  return part;
}

inline float highest_of(const float* row, long count) {
  floats most = floats{} - INFINITY;
  for (long at = 0; at < count; at += LANES) {
    const floats part = read_row(row, at, count);
    most = part > most ? part : most;
  }
  float highest = most[0];
  for (int lane = 1; lane < LANES; lane++) highest = std::max(highest, most[lane]);
  return highest;
}

// The score of the last of the `wanted` highest. A heap of them is seldom added to, once it has seen a few.
float last_of(const float* row, long count, long wanted) {
  const std::greater<float> higher;
  std::vector<float> best;
  best.reserve(wanted);
  for (long at = 0; at < count; at += LANES) {
    const floats part = read_row(row, at, count);
    const bool filling = (long)best.size() < wanted;
    if (!filling && !any(part > best.front())) continue;
    for (int lane = 0; lane < LANES; lane++) {
      if ((long)best.size() < wanted && part[lane] > -INFINITY) {
        best.push_back(part[lane]);
        std::push_heap(best.begin(), best.end(), higher);
      } else if (!best.empty() && part[lane] > best.front()) {
        std::pop_heap(best.begin(), best.end(), higher);
        best.back() = part[lane];
        std::push_heap(best.begin(), best.end(), higher);
      }
    }
  }
  return (long)best.size() < wanted ? -INFINITY : best.front();
}

// Lanes take turns at two sets of bins: the next sum need not wait for the one before.
inline void weigh(const float* row, long count, float highest, double* bins) {
  double odd[BINS] = {};
  for (long at = 0; at < count; at += LANES) {
    const floats below = highest - read_row(row, at, count), found = exponential(floats{} - below);
    const floats weights = found > 0.0f ? found : floats{};  // what is no number weighs nothing
    if (!any(weights > 0.0f)) continue;
    const floats scaled = below * BINS_EACH, last = floats{} + (BINS - 1.0f);
    const auto bin = __builtin_convertvector(weights > 0.0f ? (scaled < last ? scaled : last) : floats{}, integers);
    int32_t index[LANES];
    float weight[LANES];
    std::memcpy(index, &bin, sizeof index);
    std::memcpy(weight, &weights, sizeof weight);
    for (int lane = 0; lane < LANES; lane += 2) {
      bins[index[lane]] += weight[lane];
      odd[index[lane + 1]] += weight[lane + 1];
    }
  }
  for (int each = 0; each < BINS; each++) bins[each] += odd[each];
}

float least_kept(const float* row, long count, float mass) {
  double bins[BINS] = {}, sum = 0, reached = 0;
  const float highest = highest_of(row, count);
  weigh(row, count, highest, bins);
  for (const double weight : bins) sum += weight;
  const double wanted = mass * sum;
  int last = -1;
  for (int bin = 0; bin < BINS && reached < wanted; bin++)
    if (bins[bin] > 0) reached += bins[last = bin];
  if (last < 0) return -INFINITY;  // nothing is wanted, or what is there is no number
  reached -= bins[last];
  const float near = highest - (last - 1) / BINS_EACH;
  const float far = last < BINS - 1 ? highest - (last + 2) / BINS_EACH : -INFINITY;
  std::vector<float> held;
  for (long at = 0; at < count; at += LANES) {
    const floats part = read_row(row, at, count);
    if (!any((part > far) & (part < near))) continue;
    for (int lane = 0; lane < LANES; lane++)
      if (part[lane] > far && part[lane] <= highest && bin_of(highest - part[lane]) == last) held.push_back(part[lane]);
  }
  std::sort(held.begin(), held.end(), [](float left, float right) { return left > right; });
  for (const float value : held)
    if ((reached += std::exp((double)value - highest)) >= wanted) return value;
  return held.empty() ? -INFINITY : held.back();
}

void keep_from(float* row, long count, float least) {
  for (long j = 0; j < count; j++) row[j] = row[j] < least ? -INFINITY : row[j];
}

extern "C" void keep_likeliest(float* scores, const int64_t* counts, const float* masses, long rows, long count,
                               int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1)
  for (long row = 0; row < rows; row++) {
    float* each = scores + row * count;
    if (counts[row] > 0 && counts[row] < count) keep_from(each, count, last_of(each, count, counts[row]));
    if (masses[row] < 1.0f) keep_from(each, count, least_kept(each, count, masses[row]));
  }
}
"""
