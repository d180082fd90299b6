"""The compiled kernel against the reference, for what `test_reference` does not try."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backends.native.engine.attention import cpu_decode
from backends.native.engine.attention.cpu_decode import find_decode_batch, paged_kernel
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.kernels import jit

pytestmark = pytest.mark.torch

SIZE = 16


def stored(contexts: list[int], heads: int, width: int, dtype: torch.dtype) -> tuple[LayerCache, AttentionMetadata]:
    """Random keys and values of sequences in decode, on shuffled pages."""
    torch.manual_seed(0)
    most = -(-max(contexts) // SIZE)
    tables = torch.randperm(len(contexts) * most).view(len(contexts), most)
    like = torch.zeros(1, heads, width, dtype=dtype)
    layer = KVCache(tables.numel(), SIZE).layer(0, like, like)
    layer.keys.normal_()
    layer.values.normal_()
    return layer, AttentionMetadata(torch.empty(0), [1] * len(contexts), contexts, tables)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("sharing", [1, 2, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("window", [None, 200])
def test_it_equals_the_reference(dtype: torch.dtype, tolerance: float, sharing: int, window: int | None) -> None:
    contexts = [1, 127, 128, 129, 400]
    layer, metadata = stored(contexts, 2, 64, dtype)
    queries = torch.randn(2 * sharing, len(contexts), 64).to(dtype).transpose(0, 1)  # as models give them
    params = AttentionParams(64**-0.5, window)
    expected = reference_kernel(queries, layer, SIZE, metadata, params)
    torch.testing.assert_close(
        paged_kernel(queries, layer, SIZE, metadata, params), expected, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("sharing", "width", "window"), [(1, 64, None), (3, 80, 200), (8, 20, None), (12, 512, None)])
def test_pages_in_8_bits(dtype: torch.dtype, tolerance: float, sharing: int, width: int, window: int | None) -> None:
    """Numbers of every size, each with its own scale, on pages of which the rest is never read."""
    contexts = [1, 127, 128, 129, 400]
    plain, metadata = stored(contexts, 2, width, torch.float32)
    tokens = len(plain.keys)
    sizes = torch.rand(2, tokens, 2, 1) * 4
    layer = KVCache(tokens // SIZE, SIZE, in_8_bits=True).layer(0, plain.keys, plain.values)
    layer.write(torch.arange(tokens), plain.keys * sizes[0], plain.values * sizes[1])
    assert layer.key_scales is not None
    owned = [
        slot
        for table, context in zip(metadata.block_tables.tolist(), contexts, strict=True)
        for slot in (table[at // SIZE] * SIZE + at % SIZE for at in range(context))
    ]
    foreign = torch.ones(tokens, dtype=torch.bool)
    foreign[owned] = False
    layer.key_scales[foreign] = float("nan")
    queries = torch.randn(2 * sharing, len(contexts), width).to(dtype).transpose(0, 1)
    params = AttentionParams(width**-0.5, window)
    expected = reference_kernel(queries.float(), layer, SIZE, metadata, params)
    metadata.plans.clear()
    found = paged_kernel(queries, layer, SIZE, metadata, params)
    if jit.find_compiler() is not None:
        assert list(metadata.plans) == ["decode_batch"]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [4, 16, 20, 96, 512])
def test_any_width_and_large_scores(width: int) -> None:
    """Scores of several hundred, of which float32 rounds off 1e-4: so does the reference, and no more is allowed."""
    layer, metadata = stored([30, 140], 1, width, torch.float32)
    queries, params = torch.randn(2, 3, width), AttentionParams(20.0)
    exact = LayerCache(layer.keys.double(), layer.values.double())
    expected = reference_kernel(queries.double(), exact, SIZE, metadata, params)
    reference = reference_kernel(queries, layer, SIZE, metadata, params)
    found = paged_kernel(queries, layer, SIZE, metadata, params)
    allowed = max(1e-4, 2 * float((reference - expected).abs().max()))
    assert float((found - expected).abs().max()) <= allowed


def test_several_threads() -> None:
    layer, metadata = stored([70] * 5, 2, 32, torch.float32)
    queries, params = torch.randn(5, 4, 32), AttentionParams(0.2)
    alone = paged_kernel(queries, layer, SIZE, metadata, params)
    torch.set_num_threads(3)
    try:
        assert torch.equal(paged_kernel(queries, layer, SIZE, metadata, params), alone)
    finally:
        torch.set_num_threads(1)


def test_nan_stays_with_its_sequence() -> None:
    layer, metadata = stored([20, 20], 1, 16, torch.float32)
    layer.keys[int(metadata.block_tables[1, 1]) * SIZE] = float("nan")
    out = paged_kernel(torch.randn(2, 1, 16), layer, SIZE, metadata, AttentionParams(0.2))
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


def test_the_tokens_that_are_attended_to_one_by_one_are_found() -> None:
    tables = torch.arange(8).view(4, 2)
    counts, contexts = [1, 3, 1, 200], [9, 6, 4, 300]
    found = find_decode_batch(AttentionMetadata(torch.empty(0), counts, contexts, tables))
    assert (found.tokens.tolist(), found.contexts.tolist()) == ([0, 1, 2, 3, 4], [9, 4, 5, 6, 4])
    assert found.tables.tolist() == [[0, 1], [2, 3], [2, 3], [2, 3], [4, 5]]
    assert found.prompts == (3,)
    # A short prompt of which some tokens see later ones.
    last_keys = {1: torch.tensor([6, 6, 6])}
    found = find_decode_batch(AttentionMetadata(torch.empty(0), counts, contexts, tables, last_keys=last_keys))
    assert (found.tokens.tolist(), found.prompts) == ([0, 4], (1, 3))
    found = find_decode_batch(AttentionMetadata(torch.empty(0), [1, 1], [9, 3], tables[:2]))
    assert (found.tokens.tolist(), found.prompts) == ([0, 1], ())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("window", [None, 5])
def test_prompts_of_every_length_beside_decode(dtype: torch.dtype, tolerance: float, window: int | None) -> None:
    contexts = [1, 2, 32, 33, 90, 150, 300]  # whole prompts of up to 33, then a decode, and later parts of prompts
    layer, metadata = stored(contexts, 2, 64, dtype)
    metadata.query_lengths[:] = [1, 2, 32, 33, 1, 6, 250]
    queries = torch.randn(sum(metadata.query_lengths), 6, 64).to(dtype)
    params = AttentionParams(64**-0.5, window)
    expected = reference_kernel(queries, layer, SIZE, metadata, params)
    found = paged_kernel(queries, layer, SIZE, metadata, params)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    if jit.find_compiler() is not None:
        assert find_decode_batch(metadata).prompts == (3, 6)


def test_decode_is_attended_to_by_compiled_code() -> None:
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    layer, metadata = stored([20, 20], 1, 16, torch.bfloat16)
    queries, params = torch.randn(2, 1, 16).bfloat16(), AttentionParams(0.2)
    paged_kernel(queries, layer, SIZE, metadata, params)
    assert list(metadata.plans) == ["decode_batch"]
    cpu = torch.device("cpu")
    assert cpu_decode.supports(cpu, torch.bfloat16, params)
    assert not cpu_decode.supports(cpu, torch.bfloat16, replace(params, softcap=1.0))
    assert not cpu_decode.supports(cpu, torch.float16, params)
    assert not cpu_decode.supports(torch.device("meta"), torch.bfloat16, params)
