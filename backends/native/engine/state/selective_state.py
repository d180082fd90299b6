"""Mamba's recurrence in decode, as one compiled pass over the states (`kernels/src/selective_state.h`)."""

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
"""The most numbers of a row's state; MAX_SIZE of `src/selective_state.h`."""

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


def decay_of(module: Any) -> Tensor | None:
    """The decay that `keep_decay` computed for a Mamba layer, [channels, size]; None if it computed none."""
    kept = getattr(module, "A_log", None)
    return kept.decay if isinstance(kept, KeptDecay) else None


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
    into, out = (each if each.stride(-1) == 1 else each.contiguous() for each in (B.to(dtype), C.to(dtype)))
    outputs = torch.empty(inputs.shape, dtype=dtype)
    arrays = (state, decay, bias, skip, steps, inputs, gate, into, out, outputs)
    # Mamba's channels are the rows of one head, and its `B` and `C` those of one group.
    heads, groups = (each.shape[1] if each.dim() == 3 else 1 for each in (inputs, into))
    compiled(
        *(None if array is None else array.data_ptr() for array in arrays),
        (ctypes.c_long * 26)(
            inputs.shape[0],
            heads,
            inputs.shape[-1],
            size,
            groups,
            dt_softplus,
            alike,
            *_strides(steps.stride(), 3),
            *_strides(inputs.stride(), 3),
            *_strides(() if gate is None else gate.stride(), 3),
            *_strides(decay.stride() if alike else decay.stride()[:-1], 2),
            *_strides(() if bias is None else bias.stride(), 2),
            *_strides(() if skip is None else skip.stride(), 2),
            *_strides(into.stride(), 3)[:2],
            *_strides(out.stride(), 3)[:2],
        ),
        torch.get_num_threads(),
    )
    return outputs.to(hidden_states.dtype)


def _strides(own: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`count` strides of an array: one without heads, or groups, has one, and those of none are 0."""
    if not own:
        return (0,) * count
    return own if len(own) == count else (*own[:-1], 0, own[-1])
