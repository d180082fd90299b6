// mask_top_k_top_p: -inf for all scores of a row but the `k` highest, and then but the nucleus of mass `p`.
//
// Strategy: no sort of the vocabulary. top_k keeps a heap of k scores, which few tokens enter after the first. top_p
// adds probabilities up in bins by distance from the highest score, finds the bin in which the mass is reached, and
// sorts only that bin's scores. Sums are in float64. Equal scores stay or go together.
#include <functional>
#include <vector>

#include "simd.h"

constexpr int BINS = 2048;
constexpr float BINS_PER_UNIT = BINS / 32.0f;  // the last bin begins where probabilities are 2e-14 of the highest

inline int bin_of(float below) { return (int)std::min(below * BINS_PER_UNIT, BINS - 1.0f); }

// LANES scores from `at` on; beyond the row's end -inf.
inline f32x16 load_scores(const float* row, long at, long count) {
  f32x16 part = f32x16{} - INFINITY;
  std::memcpy(&part, row + at, std::min(LANES, count - at) * sizeof *row);
  return part;
}

inline float highest_of(const float* row, long count) {
  f32x16 most = f32x16{} - INFINITY;
  for (long at = 0; at < count; at += LANES) {
    const f32x16 part = load_scores(row, at, count);
    most = if_less(most, part, part, most);
  }
  float highest = most[0];
  for (int lane = 1; lane < LANES; lane++) highest = std::max(highest, most[lane]);
  return highest;
}

// The k-th highest score; -inf if the row has fewer that are finite.
float kth_highest(const float* row, long count, long k) {
  const std::greater<float> higher;
  std::vector<float> best;  // a heap whose front is the lowest
  best.reserve(k);
  for (long at = 0; at < count; at += LANES) {
    const f32x16 part = load_scores(row, at, count);
    const bool filling = (long)best.size() < k;
    if (!filling && !any(less(f32x16{} + best.front(), part))) continue;
    for (int lane = 0; lane < LANES; lane++) {
      if ((long)best.size() < k && part[lane] > -INFINITY) {
        best.push_back(part[lane]);
        std::push_heap(best.begin(), best.end(), higher);
      } else if (!best.empty() && part[lane] > best.front()) {
        std::pop_heap(best.begin(), best.end(), higher);
        best.back() = part[lane];
        std::push_heap(best.begin(), best.end(), higher);
      }
    }
  }
  return (long)best.size() < k ? -INFINITY : best.front();
}

// bins[BINS] += exp(score - highest) of every token. Lanes alternate between two sets of bins, so that an addition need
// not wait for the previous one to the same bin.
inline void add_weights(const float* row, long count, float highest, double* bins) {
  double odd[BINS] = {};
  for (long at = 0; at < count; at += LANES) {
    const f32x16 below = highest - load_scores(row, at, count), found = vector_exp(f32x16{} - below);
    const f32x16 weights = if_less(f32x16{}, found, found, f32x16{});  // NaN weighs nothing
    if (!any(less(f32x16{}, weights))) continue;
    const f32x16 scaled = below * BINS_PER_UNIT, last = f32x16{} + (BINS - 1.0f);
    const f32x16 bounded = if_less(scaled, last, scaled, last);
    const auto bin = __builtin_convertvector(if_less(f32x16{}, weights, bounded, f32x16{}), i32x16);
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

// The lowest score of the nucleus of `mass`.
float lowest_of_nucleus(const float* row, long count, float mass) {
  double bins[BINS] = {}, sum = 0, reached = 0;
  const float highest = highest_of(row, count);
  add_weights(row, count, highest, bins);
  for (const double weight : bins) sum += weight;
  const double wanted = mass * sum;
  int last = -1;
  for (int bin = 0; bin < BINS && reached < wanted; bin++)
    if (bins[bin] > 0) reached += bins[last = bin];
  if (last < 0) return -INFINITY;  // no mass is wanted, or all scores are NaN
  reached -= bins[last];
  // Bounds one bin wider on both sides: the vector and the scalar code may round a score into neighbouring bins.
  const float near = highest - (last - 1) / BINS_PER_UNIT;
  const float far = last < BINS - 1 ? highest - (last + 2) / BINS_PER_UNIT : -INFINITY;
  std::vector<float> held;
  for (long at = 0; at < count; at += LANES) {
    const f32x16 part = load_scores(row, at, count);
    if (!any(less(f32x16{} + far, part) & less(part, f32x16{} + near))) continue;
    for (int lane = 0; lane < LANES; lane++)
      if (part[lane] > far && part[lane] <= highest && bin_of(highest - part[lane]) == last) held.push_back(part[lane]);
  }
  std::sort(held.begin(), held.end(), [](float left, float right) { return left > right; });
  for (const float value : held)
    if ((reached += std::exp((double)value - highest)) >= wanted) return value;
  return held.empty() ? -INFINITY : held.back();
}

// -inf for scores below `lowest`; NaN stays, for the sampler to notice.
void mask_below(float* row, long count, float lowest) {
  for (long j = 0; j < count; j++) row[j] = row[j] < lowest ? -INFINITY : row[j];
}

// scores[rows, count] in place. k[rows]: 0 or at least `count` keeps all; p[rows]: 1 or more keeps all.
extern "C" void mask_top_k_top_p(float* scores, const int64_t* k, const float* p, long rows, long count, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (rows > 1)
  for (long row = 0; row < rows; row++) {
    float* each = scores + row * count;
    if (k[row] > 0 && k[row] < count) mask_below(each, count, kth_highest(each, count, k[row]));
    if (p[row] < 1.0f) mask_below(each, count, lowest_of_nucleus(each, count, p[row]));
  }
}
