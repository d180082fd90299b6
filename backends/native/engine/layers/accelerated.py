"""The routines of fused layers for accelerators: Triton's (`kernels.triton_layers`), where they prove right.

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
"""Of the routines; torch's of the same names are in `layers.reference`."""


def find(name: str, device: torch.device, dtype: torch.dtype) -> Routine | None:
    """The routine for numbers of `dtype` on an accelerator; None if there is none that is right."""
    if device.type in ("cpu", "meta") or dtype not in TOLERANCES:
        return None
    return _routine(name) if name in right_ones(device, dtype) else None


# The empty set is kept, too: one check and one line of the log a process.
@cache
def right_ones(device: torch.device, dtype: torch.dtype) -> frozenset[str]:
    """The names of the routines that give torch's numbers on the device."""
    whys = {name: why_not(name, device, dtype) for name in NAMES}
    wrong = [name for name, why in whys.items() if why is not None]
    if wrong:
        report_unused(", ".join(wrong), device, dtype, str(whys[wrong[0]]))
    return frozenset(NAMES) - frozenset(wrong)


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a routine cannot be used on the device; None: it can."""
    return why_not_used(lambda: error_of(name, _routine(name), device, dtype), TOLERANCES[dtype])


def _routine(name: str) -> Routine:
    routine: Routine = getattr(import_module("backends.native.engine.kernels.triton_layers"), name)
    return routine
