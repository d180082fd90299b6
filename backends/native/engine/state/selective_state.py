"""Mamba's recurrence in decode, as one compiled pass over the states (`kernels/src/selective_state.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.kernels.jit import function

NAMES = ("mamba_selective_state_update", "mamba2_selective_state_update")
"""The names of transformers' functions, whose place this one takes."""


def selective_state_update(  # noqa: PLR0913 - transformers' arguments
    own: Callable[..., Tensor],
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 - transformers' names, by which it is called
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """The outputs, of the shape of `hidden_states`; `state` is moved on.

    Args:
        own: transformers' function, which is called where nothing was compiled.
        state: [sequences, channels..., size]; channels are one dimension (Mamba) or heads and their width (Mamba 2).
        hidden_states: [sequences, channels...].
        dt: likewise, before bias and softplus.
        A: [channels..., size].
        B: [sequences, size], or [sequences, groups of heads, size].
        C: likewise.
        D: [channels...], the factor of the input in the output.
        dt_bias: [channels...], added to `dt`.
        dt_softplus: whether steps are softplus of `dt`.
        z: [sequences, channels...], the gate.
        others: for `own`.
    """
    compiled = function("selective_state", "selective_state_update") if state.device.type == "cpu" else None
    if compiled is None or state.dtype != torch.float32 or not state.is_contiguous():
        return own(state, hidden_states, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, **others)
    steps = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    steps = functional.softplus(steps) if dt_softplus else steps
    alike = A.stride(-1) == 0  # Mamba 2 has one number for each head
    arrays = [each.float().contiguous() for each in (A[..., 0] if alike else A, steps, hidden_states, B, C)]
    outputs = torch.empty(hidden_states.shape)
    groups = 1 if B.dim() == 2 else B.shape[1]
    sizes = (len(state), hidden_states[0].numel(), state.shape[-1], groups)
    pointers = [array.data_ptr() for array in (state, *arrays, outputs)]
    compiled(*pointers, (ctypes.c_long * 4)(*sizes), alike, torch.get_num_threads())
    if D is not None:
        outputs += hidden_states * D
    if z is not None:
        outputs *= functional.silu(z)
    return outputs.to(hidden_states.dtype)
