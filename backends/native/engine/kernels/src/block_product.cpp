// multiply_blocks_*: rows by a weight in blocks, MAX_ROWS at a time. expand_blocks_*, look_up_blocks_*: its weights.
// multiply_blocks_in_team_*: the product for each thread of a parallel region, for fused_decoder_layer.cpp. See
// blocks.h.
#include "blocks.h"

using blocks::Activations, blocks::Part, blocks::PIECE, gemm::MAX_ROWS;

static_assert(sizeof(Activations) <= 4 * 35, "ROOM of block_product.py");

// `room` holds min(rows, MAX_ROWS) * inputs / COUNT activations.
template <class Dtype>
void multiply(const void* input, const Part* parts, long count, const void* bias, void* output, Activations* room,
              long rows, long inputs, int threads) {
  using scalar = typename Dtype::scalar;
  long outputs = 0;
  for (const Part* part = parts; part < parts + count; part++) outputs += part->outputs;
#pragma omp parallel num_threads(threads)
  for (long row = 0; row < rows; row += MAX_ROWS)
    blocks::multiply<Dtype>(static_cast<const scalar*>(input) + row * inputs, parts, count, bias, nullptr,
                            static_cast<scalar*>(output) + row * outputs, room, std::min(MAX_ROWS, rows - row), inputs);
}

// weights[inputs, outputs]: those of `outputs` outputs from `first` on, which is a multiple of LANES.
template <class Dtype>
void expand(const Part& part, long first, long outputs, void* weights, long inputs, int threads) {
  using scalar = typename Dtype::scalar;
  const blocks::Functions& format = *blocks::find(part.kind);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long start = 0; start < outputs; start += LANES) {
    const uint8_t* own = part.blocks + (first + start) / LANES * format.length(inputs);
    for (long k = 0; k < inputs; k += PIECE) {
      alignas(64) float made[PIECE * LANES];
      const long count = std::min(PIECE, inputs - k);
      format.expand(own + format.length(k), count, made, LANES);
      for (long j = 0; j < count; j++)
        store<Dtype>(static_cast<scalar*>(weights) + (k + j) * outputs + start, load<Float32>(made + j * LANES, LANES),
                     outputs - start);
    }
  }
}

// rows[count, inputs]: the weights of the outputs `ids`.
template <class Dtype>
void look_up(const Part& part, const int64_t* ids, long count, void* rows, long inputs) {
  const blocks::Functions& format = *blocks::find(part.kind);
  for (long row = 0; row < count; row++) {
    auto* own = static_cast<typename Dtype::scalar*>(rows) + row * inputs;
    const uint8_t* group = part.blocks + ids[row] / LANES * format.length(inputs);
    for (long k = 0; k < inputs; k += PIECE) {
      float made[PIECE * LANES];
      const long wide = std::min(PIECE, inputs - k);
      format.expand(group + format.length(k), wide, made, LANES);
      for (long j = 0; j < wide; j++) own[k + j] = Dtype::narrow(made[j * LANES + ids[row] % LANES]);
    }
  }
}

#define MULTIPLY(name, dtype)                                                                            \
  extern "C" void name(const void* input, const Part* parts, long count, const void* bias, void* output, \
                       Activations* room, long rows, long inputs, int threads) {                         \
    multiply<dtype>(input, parts, count, bias, output, room, rows, inputs, threads);                     \
  }
MULTIPLY(multiply_blocks_float32, Float32)
MULTIPLY(multiply_blocks_bfloat16, BFloat16)

#define MULTIPLY_IN_TEAM(name, dtype)                                                                            \
  extern "C" void name(const void* input, const Part* parts, long count, const void* bias, const void* residual, \
                       void* output, Activations* room, long rows, long inputs) {                                \
    blocks::multiply<dtype>(input, parts, count, bias, residual, output, room, rows, inputs);                    \
  }
MULTIPLY_IN_TEAM(multiply_blocks_in_team_float32, Float32)
MULTIPLY_IN_TEAM(multiply_blocks_in_team_bfloat16, BFloat16)

#define EXPAND(name, dtype)                                                                                   \
  extern "C" void name(const Part* part, long first, long outputs, void* weights, long inputs, int threads) { \
    expand<dtype>(*part, first, outputs, weights, inputs, threads);                                           \
  }
EXPAND(expand_blocks_float32, Float32)
EXPAND(expand_blocks_bfloat16, BFloat16)

#define LOOK_UP(name, dtype)                                                                        \
  extern "C" void name(const Part* part, const int64_t* ids, long count, void* rows, long inputs) { \
    look_up<dtype>(*part, ids, count, rows, inputs);                                                \
  }
LOOK_UP(look_up_blocks_float32, Float32)
LOOK_UP(look_up_blocks_bfloat16, BFloat16)
