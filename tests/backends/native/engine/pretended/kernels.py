"""Triton's kernels as the pretended device runs them: the same arguments, by the reference, and nothing of the host."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention import accelerated
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import reference_kernel
from tests.backends.native.engine.pretended.device import PretendedDevice


def pretend_triton(patch: pytest.MonkeyPatch, device: PretendedDevice) -> None:
    """Have Triton's attention run on `device`."""

    def paged_attention(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        starts: Tensor,
        contexts: Tensor,
        sinks: Tensor | None,
        **options: float,
    ) -> Tensor:
        output = queries.new_empty(*queries.shape[:2], values.shape[2])
        given = (output, queries, keys, values, tables, starts, contexts)
        device.launch("attend", lambda *raw: _attend(*raw, options), *given, *(() if sinks is None else (sinks,)))
        device.launch("combine", lambda _: None, output)
        return output

    patch.setattr(accelerated, "_routine", lambda: paged_attention)
    patch.setattr(accelerated, "is_right", lambda *_: True)


def _attend(*raw: object) -> None:
    output, queries, keys, values, tables, starts, contexts, *sinks, options = raw
    assert isinstance(output, Tensor)
    assert isinstance(starts, Tensor)
    assert isinstance(contexts, Tensor)
    assert isinstance(options, dict)
    counts = [end - begin for begin, end in pairwise(starts.tolist())]
    metadata = AttentionMetadata(torch.empty(0), counts, contexts.tolist(), tables)  # type: ignore[arg-type]
    params = AttentionParams(
        options["scale"],
        int(options["window"]) or None,
        options["softcap"] or None,
        *sinks,  # type: ignore[arg-type]
    )
    output.copy_(reference_kernel(queries, LayerCache(keys, values), int(options["page"]), metadata, params))  # type: ignore[arg-type]
