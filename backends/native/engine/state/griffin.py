"""The recurrent block of Griffin (arXiv 2402.19427; RecurrentGemma) with states from outside.

transformers' block keeps its states as attributes, for one batch at a time, and its convolution sees no inputs before a
chunk. Its projections and its gated linear recurrence are called as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backends.native.engine.state.step import StateView

BLOCK = "RecurrentGemmaRecurrentBlock"
"""The name of transformers' class."""


def forward(module: Any, states: StateView, input_states: Tensor, position_ids: Tensor) -> tuple[Tensor, None]:
    """[sequences, tokens, width] to the same; `position_ids` is [sequences, tokens]."""
    layer, width = module.layer_idx, module.conv1d_width - 1
    gate = module.act_fn(module.linear_y(input_states))
    inputs = module.linear_x(input_states).transpose(1, 2)
    before = states.get_conv_state(layer)
    # A copy: the update below changes the state in place.
    before = inputs.new_zeros(*inputs.shape[:2], width) if before is None else before.clone()
    states.update_conv_state(inputs, layer, conv_kernel_size=width)
    convolution = module.conv_1d
    convolved = torch.nn.functional.conv1d(
        torch.cat([before, inputs], dim=-1), convolution.weight, convolution.bias, groups=convolution.groups
    )
    recurrence = module.rg_lru
    recurrence.recurrent_states = states.get_recurrent_state(layer)
    outputs = recurrence(convolved.transpose(1, 2), position_ids)
    states.update_recurrent_state(recurrence.recurrent_states, layer)
    recurrence.recurrent_states = None
    return module.linear_out(outputs * gate), None
