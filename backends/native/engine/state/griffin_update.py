"""Griffin's recurrent block in decode, between its projections, as one compiled pass (`kernels/src/griffin.cpp`)."""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.kernels.jit import Function, typed_function

_LANES = 16  # channels that are computed together; LANES of `src/simd.h`


class GriffinUpdate:
    """The compiled pass with the weights of one block.

    Args:
        module: transformers' block; weights are copied or referred to.
        function: the compiled pass.
    """

    def __init__(self, module: Any, function: Function) -> None:
        recurrence, convolution = module.rg_lru, module.conv_1d
        self._function = function
        self._act = module.act_fn
        # The activation that the compiled pass knows.
        probe = torch.linspace(-4.0, 4.0, 32)
        self._activates = torch.equal(self._act(probe), functional.gelu(probe, approximate="tanh"))
        weight: Tensor = convolution.weight.squeeze(1).contiguous()
        self._dtype, (self._channels, self._taps) = weight.dtype, weight.shape
        self._heads: int = len(recurrence.input_gate_weight)
        bias = torch.stack([recurrence.input_gate_bias, recurrence.recurrent_gate_bias], dim=1)
        rate = functional.softplus(recurrence.recurrent_param)
        # Kept for their memory: addresses point into it.
        self._arrays = (weight, convolution.bias, _in_order_of_use(recurrence), bias, rate)
        self._addresses = tuple(None if array is None else array.data_ptr() for array in self._arrays)

    @classmethod
    @torch.inference_mode()
    def of(cls, module: Any) -> Self | None:
        """The pass for a block; None if nothing was compiled for its device and dtype."""
        weight = module.conv_1d.weight
        function = typed_function("griffin", "griffin_update", weight.dtype) if weight.device.type == "cpu" else None
        alike = len({parameter.dtype for part in (module.conv_1d, module.rg_lru) for parameter in part.parameters()})
        return None if function is None or alike != 1 else cls(module, function)

    def takes(self, inputs: Tensor, branch: Tensor, latest: Tensor, state: Tensor) -> bool:
        """Whether these can be given to `update`: the compiled code checks nothing."""
        rows = (len(inputs), self._channels)
        return (
            inputs.shape == branch.shape == state.shape == latest.shape[:2] == rows
            and self._taps <= latest.shape[2] + 1
            and inputs.dtype == branch.dtype == latest.dtype == self._dtype
            and state.dtype == torch.float32
            and inputs.stride(1) == branch.stride(1) == 1
            and latest.is_contiguous()
            and state.is_contiguous()
        )

    def update(self, inputs: Tensor, branch: Tensor, latest: Tensor, state: Tensor) -> Tensor:
        """What the last projection multiplies, [sequences, channels], for one token of each; both states move on.

        Args:
            inputs: [sequences, channels], of the convolution.
            branch: likewise, the other branch before its activation.
            latest: [sequences, channels, length], the inputs before, the latest last.
            state: [sequences, channels] in float32, of the recurrence.
        """
        gate = branch if self._activates else self._act(branch)
        outputs, scratch = torch.empty(inputs.shape, dtype=self._dtype), torch.empty(inputs.shape)
        sizes = (len(inputs), self._heads, self._channels // self._heads, latest.shape[2], self._taps)
        more = (inputs.stride(0), gate.stride(0), self._activates, torch.get_num_threads())
        self._function(
            inputs.data_ptr(),
            gate.data_ptr(),
            latest.data_ptr(),
            *self._addresses,
            state.data_ptr(),
            scratch.data_ptr(),
            outputs.data_ptr(),
            (ctypes.c_long * 9)(*sizes, *more),
        )
        return outputs


def _in_order_of_use(recurrence: Any) -> Tensor:
    """The weights of both gates, [heads, parts of a head, width of a head, 2, channels of a part].

    Parts are padded with zeros.
    """
    weight = torch.stack([recurrence.input_gate_weight, recurrence.recurrent_gate_weight], dim=2)
    padded = functional.pad(weight, (0, -weight.shape[-1] % _LANES))
    return padded.view(*weight.shape[:3], -1, _LANES).permute(0, 3, 1, 2, 4).contiguous()
