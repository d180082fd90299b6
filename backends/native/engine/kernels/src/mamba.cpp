// mamba_update_*: one token of Mamba's mixer (arXiv 2312.00752, section 3.4) for many sequences, from its first
// projection to its last.
//
// Strategy: one parallel region for four products and two passes over states. Each is an `omp for`, whose implicit
// barrier separates it from the next.
#include "causal_conv.h"
#include "gemm.h"
#include "rms_norm.h"
#include "selective_state.h"

namespace {

// What does not change between steps; `_Mixer` of mamba_update.py has the same fields. `in`, `parameters`, `step` and
// `out` are weights in the order of gemm.h. `norms` are weights, too, of the norms of step sizes, `into` and `out` of
// selective_state.h; null if the mixer has no norms.
struct Mixer {
  const void *in, *in_bias, *convolution, *convolution_bias, *parameters, *step, *out, *out_bias, *norms[3];
  const float *decay, *step_bias, *skip;
  long width, channels, taps, rank, size;
  float epsilon;
};

// joined[rows, 2 * channels] to convolved[rows, channels]. `latest`: the inputs before, [rows, channels, length].
// Called by every thread of a parallel region.
template <class Dtype>
void convolve(const Mixer& of, const void* joined, void* latest, void* convolved, long rows, long length) {
  using scalar = typename Dtype::scalar;
  const auto *weight = static_cast<const scalar*>(of.convolution),
             *bias = static_cast<const scalar*>(of.convolution_bias);
#pragma omp for schedule(static) collapse(2)
  for (long row = 0; row < rows; row++)
    for (long channel = 0; channel < of.channels; channel += LANES) {
      const long place = row * of.channels + channel, left = of.channels - channel;
      const f32x16 sums =
          causal_conv::advance<Dtype>(static_cast<const scalar*>(joined) + 2 * row * of.channels + channel,
                                      static_cast<scalar*>(latest) + place * length, weight + channel * of.taps,
                                      bias ? bias + channel : nullptr, left, 1, length, of.taps);
      store<Dtype>(static_cast<scalar*>(convolved) + place, gated::Silu::of(round_to<Dtype>(sums)), left);
    }
}

// parameters[rows, rank + 2 * size] to the three parts, [rows, rank] and twice [rows, size], one after the other; each
// is normed if the mixer has norms. Called by every thread of a parallel region.
template <class Dtype>
void separate(const Mixer& of, const void* parameters, void* parts, long rows) {
  using scalar = typename Dtype::scalar;
  const long widths[3] = {of.rank, of.size, of.size}, all = of.rank + 2 * of.size;
#pragma omp for schedule(static)
  for (long row = 0; row < rows; row++) {
    const auto* from = static_cast<const scalar*>(parameters) + row * all;
    auto* to = static_cast<scalar*>(parts);
    for (long part = 0; part < 3; part++) {
      const long width = widths[part];
      auto* own = to + row * width;
      if (of.norms[part])
        rms_norm::norm_row<Dtype>(from, static_cast<const scalar*>(of.norms[part]), own, width, of.epsilon);
      else
        std::copy(from, from + width, own);
      from += width, to += rows * width;
    }
  }
}

// hidden[rows, width] to output[rows, width]. `latest`: see above; state[rows, channels, size]. `scratch` has room for
// rows * (5 * channels + 2 * (rank + 2 * size)) numbers. Called by every thread of a parallel region.
template <class Dtype, class Dot>
void compute(const Mixer& of, const void* hidden, void* latest, float* state, void* scratch, void* output, long rows,
             long length) {
  using scalar = typename Dtype::scalar;
  const long all = of.rank + 2 * of.size;
  auto* joined = static_cast<scalar*>(scratch);
  auto *convolved = joined + 2 * rows * of.channels, *steps = convolved + rows * of.channels;
  auto *scanned = steps + rows * of.channels, *parameters = scanned + rows * of.channels;
  auto *parts = parameters + rows * all, *into = parts + rows * of.rank, *out = into + rows * of.size;
  const selective_state::Sizes sizes = {.sequences = rows,
                                        .heads = 1,
                                        .width = of.channels,
                                        .size = of.size,
                                        .groups = 1,
                                        .softplus = 1,
                                        .alike = 0,
                                        .steps = {of.channels, 0, 1},
                                        .inputs = {of.channels, 0, 1},
                                        .gate = {2 * of.channels, 0, 1},
                                        .decay = {0, of.size},
                                        .bias = {0, 1},
                                        .skip = {0, 1},
                                        .into = {of.size, 0},
                                        .out = {of.size, 0}};
  const auto multiply = [&](const void* input, const void* weight, const void* bias, void* product, long outputs,
                            long inputs) {
    gemm::multiply<Dot>(input, weight, bias, nullptr, product, rows, outputs, inputs);
  };
  multiply(hidden, of.in, of.in_bias, joined, 2 * of.channels, of.width);
  convolve<Dtype>(of, joined, latest, convolved, rows, length);
  multiply(convolved, of.parameters, nullptr, parameters, all, of.channels);
  separate<Dtype>(of, parameters, parts, rows);
  multiply(parts, of.step, nullptr, steps, of.channels, of.rank);
  selective_state::update_all<Dtype>(
      {state, of.decay, of.step_bias, of.skip, steps, convolved, joined + of.channels, into, out, scanned}, sizes);
  multiply(scanned, of.out, of.out_bias, output, of.width, of.channels);
}

}  // namespace

#define MAMBA_UPDATE(name, dtype, dot)                                                                    \
  extern "C" void name(const Mixer* mixer, const void* hidden, void* latest, float* state, void* scratch, \
                       void* output, long rows, long length, int threads) {                               \
    _Pragma("omp parallel num_threads(threads)")                                                          \
        compute<dtype, dot>(*mixer, hidden, latest, state, scratch, output, rows, length);                \
  }
MAMBA_UPDATE(mamba_update_float32, Float32, DotFloat32)
MAMBA_UPDATE(mamba_update_bfloat16, BFloat16, DotBFloat16)
