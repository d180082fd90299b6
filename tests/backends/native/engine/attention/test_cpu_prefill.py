"""The compiled attention of prompts beside the reference in float32."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.attention import cpu_decode, cpu_prefill
from backends.native.engine.attention.cpu_decode import paged_kernel
from backends.native.engine.attention.cpu_prefill import attend_prompts
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.kernels import jit
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

SIZE = 16


@pytest.fixture(autouse=True)
def _on_any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the compiled attention where the CPU does not multiply bfloat16, too, where it is slow, but right.

    And for short prompts, which the kernel for decode would take.
    """
    monkeypatch.setattr(cpu_decode, "_SHORT", 0)
    monkeypatch.setattr(cpu_prefill, "_function", lambda: jit.function("cpu_prefill", "paged_prefill_bfloat16"))


def stored(new: list[int], contexts: list[int], heads: int, width: int) -> tuple[LayerCache, AttentionMetadata]:
    """Random keys and values on shuffled pages; slots that no sequence has hold NaN."""
    torch.manual_seed(0)
    most = -(-max(contexts) // SIZE)
    tables = torch.randperm(len(contexts) * most).view(len(contexts), most)
    like = torch.zeros(1, heads, width).bfloat16()
    layer = KVCache(tables.numel(), SIZE).layer(0, like, like)
    for pool in (layer.keys, layer.values):
        pool.fill_(float("nan"))
        for table, context in zip(tables, contexts, strict=True):
            slots = (table.unsqueeze(1) * SIZE + torch.arange(SIZE)).flatten()[:context]
            pool[slots] = torch.randn(context, heads, width).bfloat16()
    return layer, AttentionMetadata(torch.empty(0), new, contexts, tables)


def in_float32(
    queries: torch.Tensor, layer: LayerCache, metadata: AttentionMetadata, params: AttentionParams
) -> torch.Tensor:
    wide = LayerCache(layer.keys.float(), layer.values.float())
    metadata = AttentionMetadata(
        metadata.slots, metadata.query_lengths, metadata.context_lengths, metadata.block_tables
    )
    return reference_kernel(queries.float(), wide, SIZE, metadata, params)


@pytest.mark.parametrize("window", [None, 1, 17, 100])
@pytest.mark.parametrize(("heads", "sharing", "width"), [(1, 1, 64), (2, 7, 64), (2, 2, 128), (1, 3, 512)])
def test_it_equals_the_reference(heads: int, sharing: int, width: int, window: int | None) -> None:
    new, contexts = [2, 64, 1, 65, 130, 5], [2, 64, 40, 65, 300, 197]
    layer, metadata = stored(new, contexts, heads, width)
    queries = torch.randn(heads * sharing, sum(new), width).bfloat16().transpose(0, 1)  # as models give them
    params = AttentionParams(width**-0.5, window)
    found = paged_kernel(queries, layer, SIZE, metadata, params)
    assert list(metadata.plans) == ["decode_batch"]  # nothing was left to the reference
    torch.testing.assert_close(found.float(), in_float32(queries, layer, metadata, params), atol=2e-2, rtol=2e-2)


def test_large_scores() -> None:
    layer, metadata = stored([200], [200], 1, 64)
    queries, params = torch.randn(200, 2, 64).bfloat16(), AttentionParams(20.0)
    found = paged_kernel(queries, layer, SIZE, metadata, params)
    torch.testing.assert_close(found.float(), in_float32(queries, layer, metadata, params), atol=2e-2, rtol=2e-2)


def test_several_threads() -> None:
    layer, metadata = stored([150, 70], [150, 170], 2, 64)
    queries, params = torch.randn(220, 4, 64).bfloat16(), AttentionParams(0.1)
    alone = paged_kernel(queries, layer, SIZE, metadata, params)
    torch.set_num_threads(3)
    try:
        assert torch.equal(paged_kernel(queries, layer, SIZE, metadata, params), alone)
    finally:
        torch.set_num_threads(1)


def test_nan_reaches_only_the_tokens_that_see_it() -> None:
    layer, metadata = stored([90], [90], 1, 64)
    layer.keys[int(metadata.block_tables[0, 4]) * SIZE + 6] = float("nan")  # position 70
    out = paged_kernel(torch.randn(90, 1, 64).bfloat16(), layer, SIZE, metadata, AttentionParams(0.1))
    assert out[:70].isfinite().all()
    assert out[70:].isnan().all()


@pytest.mark.parametrize(("width", "dtype"), [(64, torch.float32), (96, torch.bfloat16), (576, torch.bfloat16)])
def test_other_widths_and_dtypes_are_left_to_the_reference(width: int, dtype: torch.dtype) -> None:
    like = torch.zeros(1, 1, width, dtype=dtype)
    layer = KVCache(1, SIZE).layer(0, like, like)
    metadata = AttentionMetadata(torch.empty(0), [3], [3], torch.zeros(1, 1, dtype=torch.int64))
    queries = torch.zeros(3, 1, width, dtype=dtype)
    assert not attend_prompts(queries, layer, SIZE, metadata, AttentionParams(1.0), torch.empty_like(queries), [0])
