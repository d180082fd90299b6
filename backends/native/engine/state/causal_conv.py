"""The causal convolution of recurrent layers in decode, as one compiled pass (`kernels/src/causal_conv.cpp`).

transformers calls oneDNN's convolution for the one new token of each sequence, which takes ten times as long as the
products and sums, and copies states twice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from backends.native.engine.kernels.jit import typed_function

NAME = "causal_conv1d_update"
"""The name of transformers' function, whose place this one takes."""


def causal_conv_update(
    own: Callable[..., Tensor],
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """The outputs [sequences, channels, 1]; `conv_state` is moved on.

    Args:
        own: transformers' function, which is called where nothing was compiled.
        hidden_states: [sequences, channels, 1].
        conv_state: [sequences, channels, length], the latest inputs before, the latest last.
        weight: [channels, taps].
        bias: [channels].
        activation: what is applied to the outputs, by transformers' name.
    """
    function = (
        typed_function("causal_conv", "causal_conv_update", weight.dtype) if weight.device.type == "cpu" else None
    )
    arrays = (hidden_states, conv_state, weight) if bias is None else (hidden_states, conv_state, weight, bias)
    fits = conv_state.is_contiguous() and weight.is_contiguous() and weight.shape[-1] <= conv_state.shape[-1] + 1
    if function is None or not fits or hidden_states.shape[-1] != 1 or len({array.dtype for array in arrays}) > 1:
        return own(hidden_states, conv_state, weight, bias, activation)
    sizes = (*conv_state.shape, weight.shape[-1], *hidden_states.stride()[:2])
    output = torch.empty(hidden_states.shape, dtype=weight.dtype)
    function(
        hidden_states.data_ptr(),
        conv_state.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        (ctypes.c_long * 6)(*sizes),
        torch.get_num_threads(),
    )
    found: Tensor = output if activation is None else ACT2FN[activation](output)
    return found
