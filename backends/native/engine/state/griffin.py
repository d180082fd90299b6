"""The recurrent block of Griffin (arXiv 2402.19427; RecurrentGemma) with states from outside.

transformers' block keeps its states as attributes, for one batch at a time, and its convolution sees no inputs before a
chunk. Its projections and its gated linear recurrence are called as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.state.causal_conv import causal_conv_update
from backends.native.engine.state.step import StateView

BLOCK = "RecurrentGemmaRecurrentBlock"
"""The name of transformers' class."""


def forward(module: Any, states: StateView, input_states: Tensor, position_ids: Tensor) -> tuple[Tensor, None]:
    """[sequences, tokens, width] to the same; `position_ids` is [sequences, tokens]."""
    layer = module.layer_idx
    gate = module.act_fn(module.linear_y(input_states))
    convolved = _convolve(module, states, module.linear_x(input_states).transpose(1, 2))
    recurrence = module.rg_lru
    recurrence.recurrent_states = states.get_recurrent_state(layer)
    outputs = recurrence(convolved.transpose(1, 2), position_ids)
    states.update_recurrent_state(recurrence.recurrent_states, layer)
    recurrence.recurrent_states = None
    return module.linear_out(outputs * gate), None


def _convolve(module: Any, states: StateView, inputs: Tensor) -> Tensor:
    """[sequences, channels, tokens] to the same."""
    layer, width, convolution = module.layer_idx, module.conv1d_width - 1, module.conv_1d
    before = states.get_conv_state(layer)
    if before is not None and inputs.shape[-1] == 1:
        return causal_conv_update(_convolve_one, inputs, before, convolution.weight.squeeze(1), convolution.bias)
    # A copy: the update below changes the state in place.
    before = inputs.new_zeros(*inputs.shape[:2], width) if before is None else before.clone()
    states.update_conv_state(inputs, layer, conv_kernel_size=width)
    return functional.conv1d(
        torch.cat([before, inputs], dim=-1), convolution.weight, convolution.bias, groups=convolution.groups
    )


def _convolve_one(inputs: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None, _: str | None) -> Tensor:
    """What `causal_conv_update` computes, in torch."""
    joined = torch.cat([before, inputs], dim=-1)
    before.copy_(joined[..., 1:])
    return functional.conv1d(joined, weight.unsqueeze(1), bias, groups=len(weight))
