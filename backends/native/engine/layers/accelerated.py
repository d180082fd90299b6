"""The routines of layers for accelerators: Triton's (`kernels.triton_layers`, `triton_linear`), where they prove right.

Before a device's first use each is compared there with torch's, in the dtype that is asked for. One that is not right,
or all without Triton, is not used: the model's own modules stay, and one line of the log says why.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch

from backends.native.engine.kernels.acceptance import TOLERANCES, report_unused, why_not_used
from backends.native.engine.layers.comparison import Routine, error_of

NAMES = ("rms_norm", "add_rms_norm", "rotate_and_store", "silu_and_mul", "gelu_and_mul")
"""Of the routines of fused layers; torch's of the same names are in `layers.reference`."""
PRODUCTS = ("multiply_int8",)
"""Likewise, of products with quantized weights, which most models do not have."""


def find(name: str, device: torch.device, dtype: torch.dtype) -> Routine | None:
    """The routine for numbers of `dtype` on an accelerator; None if there is none that is right."""
    if device.type in ("cpu", "meta") or dtype not in TOLERANCES:
        return None
    return _routine(name) if name in right_ones(device, dtype, PRODUCTS if name in PRODUCTS else NAMES) else None


# The empty set is kept, too: one check and one line of the log a process.
@cache
def right_ones(device: torch.device, dtype: torch.dtype, names: tuple[str, ...]) -> frozenset[str]:
    """Those of `names` whose routines give torch's numbers on the device."""
    whys = {name: why_not(name, device, dtype) for name in names}
    wrong = [name for name, why in whys.items() if why is not None]
    if wrong:
        report_unused(", ".join(wrong), device, dtype, str(whys[wrong[0]]))
    return frozenset(names) - frozenset(wrong)


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a routine cannot be used on the device; None: it can."""
    return why_not_used(lambda: error_of(name, _routine(name), device, dtype), TOLERANCES[dtype])


def _routine(name: str) -> Routine:
    module = "triton_linear" if name in PRODUCTS else "triton_layers"
    routine: Routine = getattr(import_module(f"backends.native.engine.kernels.{module}"), name)
    return routine
