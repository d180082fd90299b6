"""Mamba's mixer in decode, with its projections, as one compiled call (`kernels/src/mamba.cpp`).

A mixer has some forty operations, and for few sequences starting them takes a sixth of a step. Whether a module is such
a mixer is decided by what it computes, not by its class: both are called with the same input, and states, at the first
use (decision 14). Jamba's and Falcon Mamba's norms of step sizes and of both vectors of the state are known, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.gemv import MAX_ROWS
from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers.fused_norm import FusedNorm, FusedWeightlessNorm
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.packed_linear import PackedLinear
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.selective_state import MAX_SIZE, decay_of
from backends.native.engine.state.step import StateView

_LINEARS = ("in_proj", "x_proj", "dt_proj", "out_proj")
_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")
# How far outputs may be from the module's own, in roundings of the largest: its SiLU is torch's, and products follow.
_ROUNDINGS = {torch.float32: 32, torch.bfloat16: 4}

Forward = Callable[[Tensor, StateView], Tensor]
"""A mixer's own: [sequences, 1, width] to the same, with states that move on."""


class _Mixer(ctypes.Structure):
    """A mixer's weights and sizes: `Mixer` of `src/mamba.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("in_", "in_bias", "convolution", "convolution_bias", "parameters")),
        *((name, ctypes.c_void_p) for name in ("step", "out", "out_bias")),
        ("norms", ctypes.c_void_p * 3),
        *((name, ctypes.c_void_p) for name in ("decay", "step_bias", "skip")),
        *((name, ctypes.c_long) for name in ("width", "channels", "taps", "rank", "size")),
        ("epsilon", ctypes.c_float),
    )


class MambaUpdate:
    """The compiled call with the weights of one mixer.

    Args:
        module: transformers' mixer, its linear layers packed; weights are copied or referred to.
        norms: its three norms, or none.
        decay: [channels, size], what steps are multiplied by.
        function: the compiled code.
    """

    def __init__(self, module: Any, norms: list[Any], decay: Tensor, function: Function) -> None:
        self._function = function
        weight: Tensor = module.conv1d.weight.detach().squeeze(1).contiguous()
        self._dtype, (self._channels, self._taps) = weight.dtype, weight.shape
        self._size, self._width = decay.shape[1], module.in_proj.in_features
        rank = module.dt_proj.in_features
        step_bias = module.dt_proj.bias.detach().float()
        convolution_bias, skip = module.conv1d.bias, module.D.detach().float()
        # Kept for their memory: addresses point into it.
        self._arrays = (norms, weight, decay, step_bias, skip)
        self._children = module._modules  # noqa: SLF001 - what `getattr` looks into, at a third of its price
        self._linears = {name: getattr(module, name) for name in _LINEARS}
        into, parameters, step, out = self._linears.values()
        self._mixer = _Mixer(
            in_=into.skinny_gemm.address,
            in_bias=_address(into.bias),
            convolution=weight.data_ptr(),
            convolution_bias=_address(convolution_bias),
            parameters=parameters.skinny_gemm.address,
            step=step.skinny_gemm.address,
            out=out.skinny_gemm.address,
            out_bias=_address(out.bias),
            norms=(ctypes.c_void_p * 3)(*(norm.weight.data_ptr() for norm in norms)),
            decay=decay.data_ptr(),
            step_bias=step_bias.data_ptr(),
            skip=skip.data_ptr(),
            width=self._width,
            channels=self._channels,
            taps=self._taps,
            rank=rank,
            size=self._size,
            epsilon=norms[0].epsilon if norms else 0.0,
        )
        self._scratch = 5 * self._channels + 2 * (rank + 2 * self._size)  # numbers a row, as the compiled code lays out

    @classmethod
    @torch.inference_mode()
    def of(cls, module: Any, forward: Forward) -> Self | None:
        """The call for a mixer; None if it computes something else, or nothing was compiled for its device and dtype.

        Args:
            module: a module of a model.
            forward: its own.
        """
        linears: list[Any] = [getattr(module, name, None) for name in _LINEARS]
        decay = decay_of(module)
        convolution, skip = getattr(module, "conv1d", None), getattr(module, "D", None)
        if not all(type(each) is PackedLinear and each.skinny_gemm is not None for each in linears) or decay is None:
            return None
        if type(convolution) is not nn.Conv1d or not isinstance(skip, Tensor) or linears[2].bias is None:
            return None
        norms = [_norm(getattr(module, name, None)) for name in _NORMS if hasattr(module, name)]
        dtype, size = convolution.weight.dtype, decay.shape[-1]
        weights = [each.weight for each in (*linears, *filter(None, norms))]
        function = typed_function("mamba", "mamba_update", dtype)
        if (
            function is None
            or None in norms
            or len(norms) not in (0, 3)
            or {each.dtype for each in weights} != {dtype}
            or size > MAX_SIZE
        ):
            return None
        made = cls(module, norms, decay, function)
        return made if made._is_equal(module, forward) else None

    def takes(self, hidden: Tensor, latest: Tensor, state: Tensor) -> bool:
        """Whether these can be given to `update`, which checks nothing, and no LoRA adapter changes the mixer now."""
        count = len(hidden)
        return (
            all(self._children[name] is linear for name, linear in self._linears.items())
            and 0 < count <= MAX_ROWS
            and hidden.shape[1:] == (1, self._width)
            and latest.shape[:2] == (count, self._channels)
            and self._taps <= latest.shape[2] + 1
            and state.shape == (count, self._channels, self._size)
            and hidden.dtype == latest.dtype == self._dtype
            and state.dtype == torch.float32
            and latest.is_contiguous()
            and state.is_contiguous()
        )

    def update(self, hidden: Tensor, latest: Tensor, state: Tensor) -> Tensor:
        """[sequences, 1, width] to the same; both states move on.

        Args:
            hidden: one token of each sequence.
            latest: [sequences, channels, length], the convolution's inputs before, the latest last.
            state: [sequences, channels, size] in float32, of the recurrence.
        """
        rows = hidden.contiguous()
        output, scratch = torch.empty_like(rows), rows.new_empty(len(rows) * self._scratch)
        self._function(
            ctypes.addressof(self._mixer),
            rows.data_ptr(),
            latest.data_ptr(),
            state.data_ptr(),
            scratch.data_ptr(),
            output.data_ptr(),
            len(rows),
            latest.shape[2],
            torch.get_num_threads(),
        )
        return output

    def _is_equal(self, module: Any, forward: Forward) -> bool:
        """Whether both give the same output and leave the same states, for one token of a sequence."""
        draw = torch.Generator().manual_seed(0)
        shapes = ((1, 1, self._width), (1, self._channels, self._taps), (1, self._channels, self._size))
        hidden, latest, state = (torch.randn(shape, generator=draw) for shape in shapes)
        hidden, latest = hidden.to(self._dtype), latest.to(self._dtype)
        pool = StatePool(1)
        states = StateView(pool, slice(0, 1), fresh=False)
        states.update_conv_state(latest, module.layer_idx)
        states.update_recurrent_state(state.clone(), module.layer_idx)
        try:
            expected = forward(hidden, states)
        except Exception:  # a foreign module may raise anything if it needs other arguments
            return False
        found = (self.update(hidden, latest, state), latest, state)
        left = (states.get_conv_state(module.layer_idx), states.get_recurrent_state(module.layer_idx))
        roundings = _ROUNDINGS[self._dtype]
        return all(
            own is not None and alike(own, mine, roundings) for own, mine in zip((expected, *left), found, strict=True)
        )


def _norm(module: Any) -> Any:
    """A norm as a fused one; None if it is none."""
    kinds = (FusedNorm, FusedWeightlessNorm)
    return module if type(module) in kinds else next(filter(None, (kind.of(module) for kind in kinds)), None)


def _address(array: Tensor | None) -> int | None:
    return None if array is None else array.data_ptr()
