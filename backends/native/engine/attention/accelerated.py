"""The attention kernel for accelerators: Triton's (`kernels.triton_attention`), where it proves right on the device.

Before a device's first use it is compared there with the reference, in the dtype that is asked for. If Triton is
missing, does not compile for the device or gives other numbers, the reference runs instead, and one line of the log
says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.attention.comparison import error_of
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.kernels.acceptance import TOLERANCES, report_unused, why_not_used

MAX_WIDTH = 256
"""The widest key or value; a tile of a wider one does not fit into the memory of a multiprocessor."""


def supports(device: torch.device, dtype: torch.dtype, _params: AttentionParams) -> bool:
    """Whether Triton's kernel attends: on an accelerator on which it proved right."""
    return device.type not in ("cpu", "meta") and dtype in TOLERANCES and is_right(device, dtype)


def paged_kernel(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    """Implements `interface.Kernel` for what it `supports`."""
    widest = max(queries.shape[2], cache.values.shape[2])
    fits = queries.stride(2) == 1 and not metadata.last_keys and widest <= MAX_WIDTH
    if cache.in_8_bits:
        fits = fits and is_right(queries.device, queries.dtype, True)
    elif queries.dtype != cache.keys.dtype:
        fits = False
    attend = _attend if fits else reference_kernel
    return attend(queries, cache, block_size, metadata, params)


def _attend(
    queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> Tensor:
    attend = _routine()
    starts, contexts = metadata.device_starts, metadata.device_contexts
    assert starts is not None
    assert contexts is not None
    return attend(
        queries,
        cache.keys,
        cache.values,
        metadata.block_tables,
        starts,
        contexts,
        params.sinks,
        cache.scales,
        most_new=max(metadata.query_lengths),
        page=block_size,
        scale=params.scale,
        window=params.sliding_window or 0,
        chunk=params.chunk or 0,
        softcap=params.softcap or 0.0,
        alibi=params.alibi,
    )


# The result False is kept, too: one check and one line of the log a process.
@cache
def is_right(device: torch.device, dtype: torch.dtype, in_8_bits: bool = False) -> bool:
    """Whether the kernel gives the reference's numbers on the device, from pages of `dtype` or in 8 bits."""
    why = why_not(device, dtype, in_8_bits=in_8_bits)
    if why is not None:
        report_unused("triton_paged in 8 bits" if in_8_bits else "triton_paged", device, dtype, why)
    return why is None


@torch.inference_mode()
def why_not(device: torch.device, dtype: torch.dtype, *, in_8_bits: bool = False) -> str | None:
    """Why the kernel cannot be used on the device; None: it can."""

    def error() -> float:
        return max(error_of(_attend, device, dtype, plain=plain, in_8_bits=in_8_bits) for plain in (True, False))

    return why_not_used(error, TOLERANCES[dtype])


def _routine() -> Callable[..., Tensor]:
    from backends.native.engine.kernels.triton_attention import paged_attention

    return paged_attention
