// selective_state_update_*: Mamba's recurrence alone. See selective_state.h.
#include "selective_state.h"

using selective_state::Sizes;

#define SELECTIVE_STATE_UPDATE(name, dtype)                                                                       \
  extern "C" void name(float* state, const float* decay, const float* bias, const float* skip, const void* steps, \
                       const void* inputs, const void* gate, const void* into, const void* out, void* outputs,    \
                       const Sizes* sizes, int threads) {                                                         \
    _Pragma("omp parallel num_threads(threads)") selective_state::update_all<dtype>(                              \
        {state, decay, bias, skip, steps, inputs, gate, into, out, outputs}, *sizes);                             \
  }
SELECTIVE_STATE_UPDATE(selective_state_update_float32, Float32)
SELECTIVE_STATE_UPDATE(selective_state_update_bfloat16, BFloat16)
