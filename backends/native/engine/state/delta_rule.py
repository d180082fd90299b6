"""The gated delta rule in decode, as one compiled pass over the states (`kernels/src/delta_rule.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import typed_function

NAMES = ("torch_recurrent_gated_delta_rule", "recurrent_kimi_delta_attention")
"""The names of transformers' functions, whose place this one takes."""
MAX_WIDTH = 512
"""The most numbers of a key; MAX_KEYS of `src/delta_rule.cpp`."""


def delta_rule_update(
    own: Callable[..., tuple[Tensor, Tensor | None]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The outputs [sequences, 1, heads, values], and the state, which is moved on in place.

    Args:
        own: transformers' function, which is called where nothing was compiled, and for several tokens.
        query: [sequences, 1, key heads, keys].
        key: likewise.
        value: [sequences, 1, heads, values].
        g: the logarithm of the decay, [sequences, 1, heads], or for each key, [sequences, 1, heads, keys].
        beta: [sequences, 1, heads], how much of a value is written.
        initial_state: [sequences, heads, keys, values].
        output_final_state: whether the state is returned.
        use_qk_l2norm_in_kernel: whether queries and keys are divided by their lengths.
        others: for `own`.
    """
    compiled = typed_function("delta_rule", "delta_rule_update", value.dtype) if value.device.type == "cpu" else None
    state = initial_state
    if (
        compiled is None
        or state is None
        or (state.dtype, state.is_contiguous()) != (torch.float32, True)
        or state.shape != (len(value), value.shape[2], key.shape[3], value.shape[3])
        or not _fits(query, key, value)
    ):
        return own(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=state,
            output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            **others,
        )
    decay, rate, outputs = g.float().contiguous(), beta.float().contiguous(), value.new_empty(value.shape)
    sizes = (*state.shape[:2], key.shape[2], *state.shape[2:], decay[0].numel() // state.shape[1])
    strides = (stride for each in (query, key, value) for stride in (each.stride(0), each.stride(2)))
    arrays = (state, query, key, value, decay, rate, outputs)
    more = (use_qk_l2norm_in_kernel, torch.get_num_threads())
    compiled(*(array.data_ptr() for array in arrays), (ctypes.c_long * 14)(*sizes, *more, *strides))
    return outputs, state if output_final_state else None


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the compiled code takes them: it checks nothing."""
    alike = query.shape == key.shape and query.dtype == key.dtype == value.dtype
    adjacent = all(each.shape[1] == 1 and each.stride(-1) == 1 for each in (query, key, value))
    return alike and adjacent and key.shape[-1] <= MAX_WIDTH and value.shape[2] % key.shape[2] == 0
