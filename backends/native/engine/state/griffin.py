"""The recurrent block of Griffin (arXiv 2402.19427; RecurrentGemma) with states from outside.

transformers' block keeps its states as attributes, for one batch at a time, and its convolution sees no inputs before a
chunk. Its projections are called as they are, and so is its gated linear recurrence but for decode, where nothing is
reset: there all between the projections is one compiled pass, or, where nothing was compiled, both gates one product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.state.causal_conv import causal_conv_update
from backends.native.engine.state.griffin_update import GriffinUpdate
from backends.native.engine.state.step import StateView

BLOCK = "RecurrentGemmaRecurrentBlock"
"""The name of transformers' class."""
_KEPT, _COMPILED = "interlingua_gates", "interlingua_update"


def forward(module: Any, states: StateView, input_states: Tensor, position_ids: Tensor) -> tuple[Tensor, None]:
    """[sequences, tokens, width] to the same; `position_ids` is [sequences, tokens]."""
    layer, recurrence = module.layer_idx, module.rg_lru
    branch, inputs = module.linear_y(input_states), module.linear_x(input_states)
    before, latest = states.get_recurrent_state(layer), states.get_conv_state(layer)
    if before is not None and latest is not None and inputs.shape[1] == 1:
        outputs = decode(module, inputs[:, 0], branch[:, 0], latest, before)
        return module.linear_out(outputs.unsqueeze(1)), None
    recurrence.recurrent_states = before
    outputs = recurrence(_convolve(module, states, inputs.transpose(1, 2)).transpose(1, 2), position_ids)
    states.update_recurrent_state(recurrence.recurrent_states, layer)
    recurrence.recurrent_states = None
    return module.linear_out(outputs * module.act_fn(branch)), None


def decode(module: Any, inputs: Tensor, branch: Tensor, latest: Tensor, state: Tensor) -> Tensor:
    """What the last projection multiplies, [sequences, channels], for one token of each; both states move on in place.

    Args:
        module: the block.
        inputs: [sequences, channels], of the convolution.
        branch: likewise, the other branch before its activation.
        latest: [sequences, channels, length], the convolution's inputs before, the latest last.
        state: [sequences, channels], of the recurrence.
    """
    compiled = _compiled(module)
    if compiled is not None and compiled.takes(inputs, branch, latest, state):
        return compiled.update(inputs, branch, latest, state)
    weight, bias = module.conv_1d.weight.squeeze(1), module.conv_1d.bias
    convolved = causal_conv_update(_convolve_one, inputs.unsqueeze(-1), latest, weight, bias)
    outputs: Tensor = _recur(module.rg_lru, convolved[..., 0], state) * module.act_fn(branch)
    return outputs


def _compiled(module: Any) -> GriffinUpdate | None:
    """The compiled pass for a block, made at its first use."""
    if not hasattr(module, _COMPILED):
        setattr(module, _COMPILED, GriffinUpdate.of(module))
    found: GriffinUpdate | None = getattr(module, _COMPILED)
    return found


class _Gates(NamedTuple):
    """Of a gated linear recurrence: input gates before recurrence gates.

    Attributes:
        weight: [heads, width of a head, 2 * width of a head].
        bias: [heads, 1, 2 * width of a head].
        rate: [channels], by which recurrence gates are multiplied.
    """

    weight: Tensor
    bias: Tensor
    rate: Tensor

    @classmethod
    def of(cls, recurrence: Any) -> _Gates:
        """Those of a module, made at their first use."""
        found: _Gates | None = getattr(recurrence, _KEPT, None)
        if found is None:
            weight = torch.cat([recurrence.input_gate_weight, recurrence.recurrent_gate_weight], dim=-1)
            bias = torch.cat([recurrence.input_gate_bias, recurrence.recurrent_gate_bias], dim=-1)
            found = cls(
                weight.detach(), bias.detach().unsqueeze(1), functional.softplus(recurrence.recurrent_param).detach()
            )
            setattr(recurrence, _KEPT, found)
        return found


def _recur(recurrence: Any, inputs: Tensor, state: Tensor) -> Tensor:
    """The outputs [sequences, channels] for one token of each sequence; `state`, likewise, is moved on in place."""
    gates = _Gates.of(recurrence)
    rows, (heads, width, _) = len(inputs), gates.weight.shape
    joined = torch.baddbmm(gates.bias, inputs.reshape(rows, heads, width).transpose(0, 1), gates.weight).sigmoid_()
    into, kept = (each.transpose(0, 1).reshape(rows, -1) for each in joined.chunk(2, dim=-1))
    logarithm = (-8.0 * kept).mul_(gates.rate)
    normal = (1 - torch.exp(2 * logarithm)).sqrt_()
    state.mul_(logarithm.exp_()).add_((inputs * into).mul_(normal))
    return state.to(inputs.dtype)


def _convolve(module: Any, states: StateView, inputs: Tensor) -> Tensor:
    """[sequences, channels, tokens] of prompts to the same."""
    layer, width, convolution = module.layer_idx, module.conv1d_width - 1, module.conv_1d
    before = states.get_conv_state(layer)
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
