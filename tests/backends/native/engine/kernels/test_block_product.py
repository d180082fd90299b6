"""Products with weights in GGUF blocks are those with the weights that the package `gguf` makes of the same blocks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from backends.native.engine.formats.levels import Levels
from backends.native.engine.kernels.block_product import (
    GROUPED,
    KINDS,
    MAX_ROWS,
    BlockProduct,
    Blocks,
    most_rows,
)
from tests.backends.native.checkpoints.gguf_files import random_blocks
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

NAMES = [*(GGMLQuantizationType(kind).name for kind in KINDS), *(f"{bits} bits by {size}" for bits, size in GROUPED)]
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2**-8)]


def made(name: str, outputs: int, inputs: int, seed: int = 0) -> tuple[Blocks, torch.Tensor]:
    """Random blocks, and the weights [outputs, inputs] that they stand for."""
    if "bits" in name:
        bits, *_, size = name.split()
        return grouped(int(bits), int(size), outputs, inputs, torch.Generator().manual_seed(seed))
    rows = random_blocks((outputs, inputs), name, np.random.default_rng(seed))
    weights = dequantize(rows, GGMLQuantizationType[name]).astype(np.float32)
    return Blocks.of(GGMLQuantizationType[name], torch.from_numpy(rows)), torch.from_numpy(weights)


def grouped(bits: int, size: int, outputs: int, inputs: int, draw: torch.Generator) -> tuple[Blocks, torch.Tensor]:
    shape, most = (outputs, inputs // size), 2**bits
    numbers = torch.randint(0, most, (outputs, inputs), generator=draw)
    # Zeros are near the middle: far from it, products are small differences of large sums.
    zeros = torch.randint(most // 2 - 2, most // 2 + 3, shape, generator=draw)
    levels = Levels(bits, numbers, zeros, torch.rand(shape, generator=draw) * 1e-2 + 1e-3)
    blocks = levels.blocks()
    assert blocks is not None
    assert blocks.kind == GROUPED[bits, size]
    return blocks, levels.weight()


def multiplied(product: BlockProduct, rows: torch.Tensor, threads: int) -> torch.Tensor:
    """The products of `rows`, by so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return product.multiply(rows)
    finally:
        torch.set_num_threads(before)


def test_the_sizes_of_blocks_are_those_of_the_package() -> None:
    assert {kind: tuple(GGML_QUANT_SIZES[GGMLQuantizationType(kind)]) for kind in KINDS} == KINDS


@pytest.mark.parametrize("name", NAMES)
def test_expanded_weights_are_exact(name: str) -> None:
    blocks, weights = made(name, 37, 512)
    product = BlockProduct((blocks,), None, torch.float32)
    [(first, found)] = list(product.expanded())
    assert first == 0
    # A group's zero is multiplied by its scale before it is taken away.
    near = 2e-7 * float(weights.abs().max()) if "bits" in name else 0
    torch.testing.assert_close(found.T, weights, atol=near, rtol=2e-7)
    ids = torch.tensor([[3, 36], [0, 17]])
    torch.testing.assert_close(product.look_up(ids), weights[ids], atol=near, rtol=2e-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_products_equal_those_in_float64(name: str, dtype: torch.dtype, tolerance: float) -> None:
    # Several blocks of 64 outputs and pieces of 256 inputs, and a rest of each.
    blocks, weights = made(name, 150, 768)
    bias = torch.randn(150, generator=torch.Generator().manual_seed(1)).to(dtype)
    for added in (None, bias):
        product = BlockProduct((blocks,), added, dtype)
        for count in (1, 2, 3, 4, 5, 7, 13, MAX_ROWS):
            rows = torch.randn(count, 768, generator=torch.Generator().manual_seed(count)).to(dtype)
            expected = rows.double() @ weights.double().T + (0 if added is None else added.double())
            scale = weights.double().square().sum(1).sqrt()
            error = (product.multiply(rows).double() - expected).abs() / (expected.abs() + scale)
            assert error.max() < tolerance, count


@pytest.mark.parametrize("name", NAMES)
def test_the_product_of_a_row_is_the_same_to_the_last_bit_beside_others(name: str) -> None:
    product = BlockProduct((made(name, 70, 512)[0],), None, torch.float32)
    rows = torch.randn(MAX_ROWS, 512, generator=torch.Generator().manual_seed(0))
    expected = product.multiply(rows)
    for count in (1, 2, 8, 33):
        assert torch.equal(product.multiply(rows[:count]), expected[:count]), count


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_more_rows_than_are_taken_at_once_have_the_products_of_fewer(dtype: torch.dtype, threads: int) -> None:
    parts = tuple(made(name, outputs, 512)[0] for name, outputs in (("Q4_1", 70), ("Q6_K", 20)))
    draw = torch.Generator().manual_seed(0)
    product = BlockProduct(parts, torch.randn(90, generator=draw).to(dtype), dtype)
    rows = torch.randn(2 * MAX_ROWS + 5, 512, generator=draw).to(dtype)
    found = multiplied(product, rows, threads)
    assert torch.equal(found, torch.cat([product.multiply(some) for some in rows.split(MAX_ROWS)]))


@pytest.mark.parametrize(
    ("capability", "in_float32", "in_bfloat16"),
    [("AVX512", MAX_ROWS, MAX_ROWS), ("AVX2", 3 * MAX_ROWS, sys.maxsize), ("DEFAULT", MAX_ROWS, MAX_ROWS)],
)
def test_without_avx512_more_rows_are_multiplied_by_blocks(
    capability: str, in_float32: int, in_bfloat16: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    most = most_rows.__wrapped__
    assert (most(torch.float32), most(torch.bfloat16)) == (in_float32, in_bfloat16)


@pytest.mark.parametrize("factor", [0, 1e-38, 1e-30, 1e30])
def test_activations_may_be_small_or_large(factor: float) -> None:
    blocks, weights = made("Q4_1", 20, 64)
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * factor
    rows[:, 32:] *= 2**-6
    found = BlockProduct((blocks,), None, torch.float32).multiply(rows).double()
    expected = rows.double() @ weights.double().T
    # Activations near float32's smallest normal number are multiples of it.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()) + 2**-116)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_has_no_product(name: str, wrong: float) -> None:
    product = BlockProduct((made(name, 20, 512)[0],), None, torch.float32)
    rows = torch.ones(3, 512)
    rows[1, 77] = wrong
    found = product.multiply(rows)
    assert not found[1].isfinite().any()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_several_kinds_follow_each_other(threads: int) -> None:
    parts = [made(name, outputs, 256, outputs) for name, outputs in (("Q4_K", 96), ("Q6_K", 32), ("Q8_0", 8))]
    product = BlockProduct(tuple(blocks for blocks, _ in parts), None, torch.float32)
    weights = torch.cat([own for _, own in parts])
    rows = torch.randn(2, 256, 3, generator=torch.Generator().manual_seed(0))[..., 1].view(2, 1, 256)
    found = multiplied(product, rows, threads)
    torch.testing.assert_close(found, rows @ weights.T, atol=1e-3, rtol=1e-4)


def test_large_weights_are_expanded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.native.engine.kernels.block_product._EXPANDED_BYTES", 32 * 256 * 4)
    both = [made(name, 50, 256, seed) for seed, name in enumerate(("Q4_0", "Q5_K"))]
    product = BlockProduct(tuple(blocks for blocks, _ in both), None, torch.float32)
    found = list(product.expanded())
    assert [first for first, _ in found] == [0, 32, 50, 82]
    whole = torch.cat([part.T for _, part in found])
    torch.testing.assert_close(whole, torch.cat([own for _, own in both]), atol=0, rtol=2e-7)


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xC000, 0x7BFF])
def test_every_kind_of_float16_is_a_scale(bits: int) -> None:
    row: Any = np.zeros((1, 34), np.uint8)
    row[0, :2] = np.array([bits], np.uint16).view(np.uint8)
    row[0, 2] = 3
    product = BlockProduct((Blocks.of(GGMLQuantizationType.Q8_0, torch.from_numpy(row)),), None, torch.float32)
    assert float(product.look_up(torch.tensor([0]))[0, 0]) == 3 * float(np.array([bits], np.uint16).view(np.float16)[0])


@pytest.mark.parametrize("wrong", [-1, 8])
def test_a_row_that_does_not_exist_is_refused(wrong: int) -> None:
    product = BlockProduct((made("Q4_1", 8, 32)[0],), None, torch.float32)
    with pytest.raises(IndexError, match="of a matrix of 8"):
        product.look_up(torch.tensor([0, wrong]))
