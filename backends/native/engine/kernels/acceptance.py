"""Whether a routine for accelerators is used: only where it was seen to give the numbers of torch's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import structlog
import torch

log = structlog.get_logger()

TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""How far a number may be from the reference's in float32, relative to the largest."""


def why_not_used(error: Callable[[], float], tolerance: float) -> str | None:
    """Why a routine of Triton cannot be used; None: it can.

    Args:
        error: runs it; how far it is from the reference.
        tolerance: how far it may be.

    Raises:
        torch.OutOfMemoryError: there was no memory to run it.
    """
    if find_spec("triton") is None:
        return "triton is not installed"
    try:
        found = error()
    except torch.OutOfMemoryError:  # says nothing about the routine
        raise
    except Exception as raised:  # whatever Triton's compiler or driver raises
        return f"{type(raised).__name__}: {raised}"[:500]
    # `not <=`: NaN fails, too.
    return None if found <= tolerance else f"it differs from the reference by {found:.1e}"


def report_unused(kernel: str, device: torch.device, dtype: torch.dtype, why: str) -> None:
    """Log that torch's operations are used instead of a routine."""
    log.warning("kernel.not_used", kernel=kernel, device=str(device), dtype=str(dtype), why=why)
