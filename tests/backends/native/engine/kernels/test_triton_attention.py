"""Triton's attention against the reference, in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from backends.native.engine.attention import accelerated, comparison
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.reference import reference_kernel
from tests.missing_tools import missing

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason=missing("triton")),
]

DECODE, MIXED = ([1, 1, 1], [1, 17, 70]), ([1, 9, 1, 20], [50, 9, 1, 40])


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the interpreter some ten milliseconds."""
    from backends.native.engine.kernels import triton_attention

    monkeypatch.setattr(triton_attention, "_PROGRAMS", 16)


def case(
    heads: tuple[int, int], widths: tuple[int, int], page: int, dtype: torch.dtype, lengths: tuple[list[int], list[int]]
) -> tuple[torch.Tensor, LayerCache, AttentionMetadata]:
    """Queries, and a cache in which whatever no sequence owns is NaN."""
    new, contexts = lengths
    draw = torch.Generator().manual_seed(0)
    width = -(-max(contexts) // page)
    tables = torch.randperm(len(contexts) * width, generator=draw).view(len(contexts), width)
    keys, values = (torch.full((tables.numel() * page, heads[1], each), float("nan"), dtype=dtype) for each in widths)
    for row, context in zip(tables.tolist(), contexts, strict=True):
        slots = [row[place // page] * page + place % page for place in range(context)]
        for pool in (keys, values):
            pool[slots] = torch.randn(context, *pool.shape[1:], generator=draw).to(dtype)
    metadata = AttentionMetadata(torch.empty(0), new, contexts, tables)
    metadata.device_starts = torch.tensor([*metadata.starts, sum(new)])
    metadata.device_contexts = torch.tensor(contexts)
    queries = (
        torch.randn(heads[0], sum(new), widths[0], generator=draw).to(dtype).transpose(0, 1)
    )  # as models give them
    return queries, LayerCache(keys, values), metadata


@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(
    ("heads", "widths", "page", "dtype", "window", "softcap", "has_sinks"),
    [
        ((2, 2), (64, 64), 16, torch.float32, None, None, False),
        ((7, 1), (80, 48), 4, torch.float32, 24, None, True),
        ((6, 1), (64, 64), 16, torch.float16, None, 5.0, False),
        ((4, 2), (16, 16), 16, torch.float32, 24, 5.0, True),
    ],
)
def test_it_equals_the_reference(
    heads: tuple[int, int],
    widths: tuple[int, int],
    page: int,
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    lengths: tuple[list[int], list[int]],
) -> None:
    queries, cache, metadata = case(heads, widths, page, dtype, lengths)
    sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(1)) if has_sinks else None
    params = AttentionParams(widths[0] ** -0.5, window, softcap, sinks)
    exact = LayerCache(cache.keys.float(), cache.values.float())
    expected = reference_kernel(queries.float(), exact, page, metadata, params)
    found = accelerated.paged_kernel(queries, cache, page, metadata, params)
    assert found.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("chunk", [None, 7, 24])
def test_chunks_and_alibi(chunk: int | None, lengths: tuple[list[int], list[int]]) -> None:
    queries, cache, metadata = case((4, 2), (16, 16), 4, torch.float32, lengths)
    params = AttentionParams(0.25, alibi=torch.tensor([0.5, 0.1, 0.0, 2.0]), chunk=chunk)
    expected = reference_kernel(queries, cache, 4, metadata, params)
    found = accelerated.paged_kernel(queries, cache, 4, metadata, params)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "mixed"])
def test_pages_in_8_bits(lengths: tuple[list[int], list[int]]) -> None:
    """Of slots that no sequence owns the scales are NaN, and values have another width than keys."""
    queries, plain, metadata = case((4, 2), (80, 48), 16, torch.float32, lengths)
    cache = KVCache(metadata.block_tables.numel(), 16, in_8_bits=True).layer(0, plain.keys, plain.values)
    cache.write(torch.arange(len(plain.keys)), plain.keys, plain.values)
    assert cache.scales is not None
    assert all(scales.isnan().any() for scales in cache.scales)
    params = AttentionParams(80**-0.5)
    expected = reference_kernel(queries, cache, 16, metadata, params)
    found = accelerated._attend(queries, cache, 16, metadata, params)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("splits", [1, 16])
def test_keys_may_be_split_into_more_parts_than_there_are(splits: int) -> None:
    from backends.native.engine.kernels.triton_attention import paged_attention

    queries, cache, metadata = case((2, 1), (16, 16), 16, torch.float32, ([1, 1], [3, 70]))
    assert metadata.device_starts is not None
    assert metadata.device_contexts is not None
    given = (metadata.block_tables, metadata.device_starts, metadata.device_contexts, None)
    found = paged_attention(queries, cache.keys, cache.values, *given, most_new=1, page=16, scale=0.25, splits=splits)
    expected = reference_kernel(queries, cache, 16, metadata, AttentionParams(0.25))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_the_check_of_a_device_accepts_it_and_notices_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(comparison, "_CASES", comparison._CASES[:1])
    assert accelerated.why_not(cpu, torch.float32) is None
    assert accelerated.why_not(cpu, torch.float32, in_8_bits=True) is None
    right = accelerated._routine()
    monkeypatch.setattr(accelerated, "_routine", lambda: lambda *args, **more: right(*args, **more | {"window": 3}))
    why = accelerated.why_not(cpu, torch.float32)
    assert why is not None
    assert "differs from the reference" in why
