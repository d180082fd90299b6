// decoder_layers_*: decoder layers (Llama's order of parts), one after the other, for up to 64 tokens.
//
// Strategy: one parallel region for all layers. Each part of a layer is an `omp for`, whose implicit barrier separates
// it from the next: threads meet there awake instead of being woken once for each of some ten operations. Residual
// additions are the epilogues of the second and the fourth product.
#include "gated_activation.h"
#include "gemm.h"
#include "paged_decode.h"
#include "rms_norm.h"
#include "rotary.h"

// A linear layer. `parts`: 0 for a weight in the order of gemm.h; else `weight` is so many `Part`s of blocks.h.
struct Linear {
  const void *weight, *bias;
  long parts;
};

// What does not change between steps; `_Layer` of fused_decoder_layer.py has the same fields. `multiply_blocks`: the
// product for weights in blocks, of block_product.cpp, so that its code is compiled once.
struct Layer {
  Linear qkv, out, gate_up, down;
  const void *norm, *second_norm, *query_norm, *key_norm;
  void (*multiply_blocks)(const void* input, const void* parts, long count, const void* bias, const void* residual,
                          void* output, void* room, long rows, long inputs);
  long width, heads, key_heads, head_width, inner, window, gelu;
  float epsilon, second_epsilon, head_epsilon, scale;
};

// What is the same for all layers of a step; `_Step` of fused_decoder_layer.py has the same fields. `scratch` has room
// for rows * (width + max(queries, keys and values; gate and up) + attended + inner) numbers, and `room` for rows *
// max(width, attended, inner). `rotated`: see rotary.h; `table`: the width of the block tables; `page`: tokens of a
// page.
struct Step {
  const void *cosines, *sines;
  const int64_t *slots, *tokens, *tables, *contexts;
  void *scratch, *room;
  long rows, rotated, table, page, threads;
};

// Called by every thread of a parallel region.
template <class Dot>
void multiply(const Layer& of, const Linear& linear, const void* input, const void* residual, void* output, void* room,
              long rows, long outputs, long inputs) {
  if (!linear.parts)
    return gemm::multiply<Dot>(input, linear.weight, linear.bias, residual, output, rows, outputs, inputs);
  of.multiply_blocks(input, linear.weight, linear.parts, linear.bias, residual, output, room, rows, inputs);
}

// hidden[rows, width] to output[rows, width]. Called by every thread of a parallel region.
template <class Dtype, class Dot>
void compute(const Layer& of, const Step& step, const void* hidden, void* output, void* keys, void* values) {
  const long rows = step.rows, attended = of.heads * of.head_width;
  const long qkv = attended + 2 * of.key_heads * of.head_width;
  auto* normed = static_cast<typename Dtype::scalar*>(step.scratch);
  auto *joined = normed + rows * of.width, *mixed = joined + rows * std::max(qkv, 2 * of.inner);
  auto* gates = mixed + rows * attended;
  const rotary::Sizes rotary_sizes = {.tokens = rows,
                                      .heads = of.heads,
                                      .key_heads = of.key_heads,
                                      .width = of.head_width,
                                      .rotated = step.rotated,
                                      .threads = step.threads};
  const paged_decode::Sizes decode_sizes = {.sequences = rows,
                                            .table = step.table,
                                            .block = step.page,
                                            .window = of.window,
                                            .heads = of.heads,
                                            .key_heads = of.key_heads,
                                            .key_width = of.head_width,
                                            .value_width = of.head_width,
                                            .token_stride = qkv,
                                            .head_stride = of.head_width,
                                            .threads = step.threads};
  using Pages = paged_decode::SameDtype<Dot>;
  const paged_decode::Pools<Pages> pools = {static_cast<typename Dot::scalar*>(keys),
                                            static_cast<typename Dot::scalar*>(values)};
  rms_norm::norm_rows<Dtype>(hidden, of.norm, normed, rows, of.width, of.epsilon);
  multiply<Dot>(of, of.qkv, normed, nullptr, joined, step.room, rows, qkv, of.width);
  rotary::rotate_and_store<Dtype>(joined, step.cosines, step.sines, of.query_norm, of.key_norm, step.slots, keys,
                                  values, rotary_sizes, of.head_epsilon);
  paged_decode::attend<Pages>(joined, pools, mixed, step.tokens, step.tables, step.contexts, decode_sizes, of.scale);
  multiply<Dot>(of, of.out, mixed, hidden, output, step.room, rows, of.width, attended);
  rms_norm::norm_rows<Dtype>(output, of.second_norm, normed, rows, of.width, of.second_epsilon);
  multiply<Dot>(of, of.gate_up, normed, nullptr, joined, step.room, rows, 2 * of.inner, of.width);
  if (of.gelu)
    gated::activate_and_multiply<Dtype, gated::Gelu>(joined, gates, rows, of.inner);
  else
    gated::activate_and_multiply<Dtype, gated::Silu>(joined, gates, rows, of.inner);
  multiply<Dot>(of, of.down, gates, output, output, step.room, rows, of.width, of.inner);
}

// `count` layers of equal sizes: hidden[rows, width] to outputs[count, rows, width], each layer's the next one's input.
template <class Dtype, class Dot>
void compute_all(const Layer* const* layers, long count, const Step& step, const void* hidden, void* outputs,
                 void* const* keys, void* const* values) {
  const long numbers = step.rows * layers[0]->width;
#pragma omp parallel num_threads(step.threads)
  for (long at = 0; at < count; at++) {
    auto* output = static_cast<typename Dtype::scalar*>(outputs) + at * numbers;
    compute<Dtype, Dot>(*layers[at], step, at ? output - numbers : hidden, output, keys[at], values[at]);
  }
}

#define DECODER_LAYERS(name, dtype, dot)                                                                            \
  extern "C" void name(const Layer* const* layers, long count, const Step* step, const void* hidden, void* outputs, \
                       void* const* keys, void* const* values) {                                                    \
    compute_all<dtype, dot>(layers, count, *step, hidden, outputs, keys, values);                                   \
  }
DECODER_LAYERS(decoder_layers_float32, Float32, DotFloat32)
DECODER_LAYERS(decoder_layers_bfloat16, BFloat16, DotBFloat16)
