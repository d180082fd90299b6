"""Mamba's recurrence in decode, as one compiled pass over the states (`kernels/src/selective_state.cpp`)."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.jit import typed_function

NAMES = ("mamba_selective_state_update", "mamba2_selective_state_update")
"""The names of transformers' functions, whose place this one takes."""
MAX_SIZE = 256
"""The most numbers of a row's state; MAX_SIZE of `src/selective_state.cpp`."""

_DECAY = "-torch.exp(self.A_log.float())"


class KeptDecay(NamedTuple):
    """What code of a Mamba layer may do with `A_log`: make the decay of it, which is the same in every step.

    Attributes:
        decay: [channels, size].
    """

    decay: Tensor

    def float(self) -> KeptDecay:
        """Itself."""
        return self

    def __neg__(self) -> Tensor:
        return self.decay

    @classmethod
    def __torch_function__(cls, function: object, _: object, args: tuple[Any, ...] = (), __: object = None) -> Any:
        return args[0] if function is torch.exp else NotImplemented


def keep_decay(module: Any) -> None:
    """Have a Mamba layer compute its decay of `A_log` now and never again, if it does nothing else with it.

    It has a row for each channel: 50 µs for 2,048 of 16 numbers, a quarter of what the states of 8 sequences take.
    """
    logarithm = getattr(module, "A_log", None)
    if not isinstance(logarithm, nn.Parameter) or logarithm.dim() < 2:
        return
    code = inspect.getsource(inspect.unwrap(type(module).forward))
    if code.count("A_log") == code.count(_DECAY) == 1:
        del module.A_log
        module.A_log = KeptDecay(-torch.exp(logarithm.detach().float()))


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
    given = [hidden_states, dt, B, C] if z is None else [hidden_states, dt, B, C, z]
    # Where dtypes are mixed, float32 holds them all.
    dtype = dt.dtype if len({each.dtype for each in given}) == 1 else torch.float32
    compiled = typed_function("selective_state", "selective_state_update", dtype) if dt.device.type == "cpu" else None
    size = state.shape[-1]
    if compiled is None or (state.dtype, state.is_contiguous()) != (torch.float32, True) or size > MAX_SIZE:
        return own(state, hidden_states, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, **others)
    alike = A.stride(-1) == 0  # Mamba 2 has one number for each head
    decay = (A[..., 0] if alike else A.contiguous()).float()
    bias = None if dt_bias is None else dt_bias.to(dt.dtype).float()
    skip = None if D is None else D.float()
    inputs, steps = hidden_states.to(dtype), dt.to(dtype)
    gate = None if z is None else z.to(dtype)
    if inputs.dim() == 2:  # Mamba's channels are the rows of one head
        inputs, steps, decay = inputs.unsqueeze(1), steps.unsqueeze(1), decay.unsqueeze(0)
        bias, skip = (None if each is None else each.unsqueeze(0) for each in (bias, skip))
        gate = None if gate is None else gate.unsqueeze(1)
    into, out = (_by_groups(each.to(dtype)) for each in (B, C))
    outputs = torch.empty(inputs.shape, dtype=dtype)
    arrays = (state, decay, bias, skip, steps, inputs, gate, into, out, outputs)
    compiled(
        *(None if array is None else array.data_ptr() for array in arrays),
        (ctypes.c_long * 27)(
            *inputs.shape,
            size,
            into.shape[1],
            dt_softplus,
            alike,
            torch.get_num_threads(),
            *steps.stride(),
            *inputs.stride(),
            *(gate.stride() if gate is not None else (0, 0, 0)),
            *decay.stride()[:2],
            *(bias.stride() if bias is not None else (0, 0)),
            *(skip.stride() if skip is not None else (0, 0)),
            *into.stride()[:2],
            *out.stride()[:2],
        ),
    )
    return outputs.view(hidden_states.shape).to(hidden_states.dtype)


def _by_groups(mixed: Tensor) -> Tensor:
    """[sequences, size] or [sequences, groups, size] as the latter, whose numbers lie together."""
    grouped = mixed.unsqueeze(1) if mixed.dim() == 2 else mixed
    return grouped if grouped.stride(-1) == 1 else grouped.contiguous()
