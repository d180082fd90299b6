"""The attention kernels, in order of preference, and the choice among them.

A new kernel is one module with a `Kernel` (`interface`) and one line in `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.native.engine.attention import accelerated, cpu_decode, reference
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, Kernel
from backends.native.engine.attention.kv_cache import LayerCache


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A kernel, and what it can attend to.

    Attributes:
        name: for the log and for tests.
        supports: whether it computes attention with `params` for queries, keys and values of this dtype and device.
        attend: the kernel.
    """

    name: str
    supports: Callable[[torch.device, torch.dtype, AttentionParams], bool]
    attend: Kernel


CPU_PAGED = AttentionKernel("cpu_paged", cpu_decode.supports, cpu_decode.paged_kernel)
TRITON_PAGED = AttentionKernel("triton_paged", accelerated.supports, accelerated.paged_kernel)
REFERENCE = AttentionKernel("reference", lambda *_: True, reference.reference_kernel)

KERNELS: tuple[AttentionKernel, ...] = (CPU_PAGED, TRITON_PAGED, REFERENCE)
"""In order of preference; the last supports everything."""


def find_kernel(device: torch.device, dtype: torch.dtype, params: AttentionParams) -> AttentionKernel:
    """The first kernel that supports a layer's attention."""
    return next(kernel for kernel in KERNELS if kernel.supports(device, dtype, params))


def best_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """A `Kernel` that runs, for each layer, the one that `find_kernel` finds."""
    # Chosen for each layer: in one model some layers may have sinks or a softcap and others not.
    kernel = find_kernel(queries.device, queries.dtype, params)
    return kernel.attend(queries, cache, block_size, metadata, params)
