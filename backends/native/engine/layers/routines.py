"""The routines of fused layers for a device and a dtype: compiled C++ on a CPU, Triton's on an accelerator.

Each is found by the name and takes the arguments of its equivalent in `layers.reference`. None means that there is none
here: the model's own modules then stay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from backends.native.engine.kernels.jit import Function, typed_function
from backends.native.engine.layers import accelerated
from backends.native.engine.layers.comparison import Routine


def find_routine(name: str, device: torch.device, dtype: torch.dtype) -> Routine | None:
    """The routine `name` of `layers.reference`, as it is compiled for the device; None: it is not."""
    if device.type != "cpu":
        return accelerated.find(name, device, dtype)
    if name not in _ON_CPU:
        return None
    library, symbol, adapt = _ON_CPU[name]
    compiled = typed_function(library, symbol, dtype)
    return None if compiled is None else adapt(compiled)


def _norm(compiled: Function) -> Routine:
    def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, width = torch.empty_like(rows), rows.shape[-1]
        count = rows.numel() // width
        given = (rows.data_ptr(), weight.data_ptr(), normed.data_ptr())
        compiled(*given, count, width, epsilon, torch.get_num_threads())
        return normed

    return rms_norm


def _gated_norm(compiled: Function) -> Routine:
    def gated_norm(rows: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, width = torch.empty_like(rows), rows.shape[-1]
        given = (rows.data_ptr(), gate.data_ptr(), weight.data_ptr(), normed.data_ptr())
        compiled(*given, rows.numel() // width, width, epsilon, torch.get_num_threads())
        return normed

    return gated_norm


def _rotation(compiled: Function) -> Routine:
    def rotate_and_store(
        joined: Tensor,
        cosines: Tensor,
        sines: Tensor,
        norms: tuple[Tensor | None, Tensor | None],
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: int,
        epsilon: float,
    ) -> None:
        sizes = (len(joined), heads, *keys.shape[1:], cosines.shape[-1], torch.get_num_threads())
        compiled(
            joined.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            *(None if weight is None else weight.data_ptr() for weight in norms),
            slots.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            (ctypes.c_long * 6)(*sizes),
            epsilon,
        )

    return rotate_and_store


def _gate(compiled: Function) -> Routine:
    def activate_and_mul(joined: Tensor) -> Tensor:
        width = joined.shape[-1] // 2
        gated = joined.new_empty(*joined.shape[:-1], width)
        compiled(joined.data_ptr(), gated.data_ptr(), gated.numel() // width, width, torch.get_num_threads())
        return gated

    return activate_and_mul


_ON_CPU: dict[str, tuple[str, str, Callable[[Function], Routine]]] = {
    "rms_norm": ("fused_norm", "rms_norm", _norm),
    "rms_norm_once": ("fused_norm", "rms_norm_once", _norm),
    "rms_norm_silu": ("fused_norm", "rms_norm_silu", _gated_norm),
    "rms_norm_sigmoid": ("fused_norm", "rms_norm_sigmoid", _gated_norm),
    "rotate_and_store": ("fused_attention", "rotate_and_store", _rotation),
    "silu_and_mul": ("fused_mlp", "silu_and_mul", _gate),
    "gelu_and_mul": ("fused_mlp", "gelu_and_mul", _gate),
}
"""The library and the function that compute a routine, and what gives them its arguments."""
