"""The skinny GEMM gives what torch gives, and is not used where it cannot."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from backends.native.engine.kernels import gemv, jit
from backends.native.engine.kernels.gemv import SkinnyGemm
from backends.native.engine.layers.packed_linear import PackedLinear

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2**-8)]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),
]


def packed(weight: torch.Tensor) -> torch.Tensor:
    if not gemv.onednn_multiplies(weight.dtype):
        return gemv.blocked(weight)
    return torch.ops.mkldnn._reorder_linear_weight(weight, 32)


def of(weight: torch.Tensor, bias: torch.Tensor | None) -> SkinnyGemm:
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    found = SkinnyGemm.of(weight, packed(weight), bias)
    if found is None:
        pytest.skip("oneDNN has another order here")
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(64, 64), (192, 128), (64, 1024), (256, 608), (64, 6), (128, 72), (192, 1000)]
)
def test_products_equal_those_in_float64(
    dtype: torch.dtype, tolerance: float, bias: bool, outputs: int, inputs: int
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).to(dtype)
    added = torch.randn(outputs).to(dtype) if bias else None
    product = of(weight, added)
    # Every size of a tile, and several tiles; beyond 24 rows of bfloat16 where that pays.
    for count in (*range(1, 25), 63, 64, 65, 130):
        rows = torch.randn(count, inputs).to(dtype)
        if count > 24 and not product.takes(rows):
            continue
        expected = functional.linear(rows.double(), weight.double(), None if added is None else added.double())
        assert product.takes(rows)
        error = (product.multiply(rows).double() - expected).abs() / (expected.abs() + inputs**0.5)
        assert error.max() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_product_whatever_other_rows_there_are(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    product, rows = of(torch.randn(128, 600).to(dtype), None), torch.randn(130, 600).to(dtype)
    alone = torch.cat([product.multiply(row.unsqueeze(0)) for row in rows])
    counts = [count for count in (2, 6, 7, 13, 24, 64, 130) if product.takes(rows[:count])]
    assert 24 in counts
    for count in counts:
        assert torch.equal(product.multiply(rows[:count]), alone[:count])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_several_threads_and_any_shape_of_rows(threads: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(320, 64)
    product, rows = of(weight, None), torch.randn(2, 128, 3)[..., 1].view(2, 2, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(product.multiply(rows), functional.linear(rows, weight), atol=1e-4, rtol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_a_weight_that_is_a_view() -> None:
    weight, rows = torch.randn(128, 64).T, torch.randn(2, 128)
    torch.testing.assert_close(of(weight, None).multiply(rows), functional.linear(rows, weight), atol=1e-4, rtol=1e-4)


def test_nan_stays_nan() -> None:
    weight = torch.ones(64, 64).bfloat16()
    weight[3, 5] = float("inf")
    rows = torch.zeros(1, 64).bfloat16()
    assert of(weight, None).multiply(rows).isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize(
    "rows", [torch.zeros(65, 64), torch.zeros(0, 64), torch.zeros(2, 32), torch.zeros(1, 64).half()]
)
def test_rows_of_other_counts_widths_and_dtypes_are_not_taken(rows: torch.Tensor) -> None:
    assert not of(torch.zeros(64, 64), None).takes(rows)


@pytest.mark.parametrize(("shape", "dtype"), [((40, 64), torch.float32), ((64, 63), torch.bfloat16)])
def test_weights_that_are_not_blocked_are_left_to_onednn(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape).to(dtype)
    assert SkinnyGemm.of(weight, packed(weight), None) is None


@pytest.mark.parametrize("inputs", [64, 40, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_packed_without_onednn_has_the_same_product(dtype: torch.dtype, inputs: int) -> None:
    weight, rows = torch.randn(128, inputs).to(dtype), torch.randn(9, inputs).to(dtype)
    expected = of(weight, None).multiply(rows)
    product = SkinnyGemm.of(weight, gemv.blocked(weight), None)
    if product is None:
        pytest.skip("instructions for matrices want another order here")
    assert torch.equal(product.multiply(rows), expected)


@pytest.mark.parametrize("block", [0, 2, 4])
@pytest.mark.parametrize("inputs", [64, 40])
def test_a_packed_weight_with_other_numbers_is_refused(block: int, inputs: int) -> None:
    weight = torch.randn(5 * 64, inputs)
    other = weight.clone()
    other[block * 64 + 63, -1] += 1
    if SkinnyGemm.of(weight, packed(weight), None) is None:
        pytest.skip("nothing was compiled, or oneDNN has another order here")
    assert SkinnyGemm.of(weight, packed(other), None) is None


def test_a_packed_weight_of_another_order_is_refused() -> None:
    weight = torch.randn(64, 64)
    assert SkinnyGemm.of(weight.T.contiguous(), packed(weight), None) is None


@pytest.mark.parametrize(
    ("dtype", "matrices", "true", "most"),
    [
        (torch.float32, True, {"multiplies_by_tiles"}, gemv.MAX_ROWS),
        (torch.bfloat16, True, {"multiplies_by_tiles", "multiplies_in_float32"}, 32),
        (torch.bfloat16, True, {"multiplies_in_float32"}, 24),
        (torch.bfloat16, False, {"multiplies_in_float32"}, sys.maxsize),
        (torch.bfloat16, False, set(), gemv.MAX_ROWS),
    ],
)
def test_how_many_rows_pay_depends_on_the_cpu(
    dtype: torch.dtype, matrices: bool, true: set[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemv, "_has_matrix_products", lambda: matrices)
    monkeypatch.setattr(gemv, "function", lambda _, symbol: lambda: symbol in true)
    assert gemv._most_rows.__wrapped__(dtype) == most


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="for CPUs with AMX")
def test_the_order_for_amx_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(192, 72).bfloat16()
    whole = of(weight, None)
    assert gemv._multiplies_by_tiles()
    monkeypatch.setattr(gemv, "_multiplies_by_tiles", lambda: False)
    assert SkinnyGemm.of(weight, packed(weight), None) is None
    # Groups of up to 16 rows, the last of which may overlap the one before it.
    rows = torch.randn(64, 72).bfloat16()
    expected = whole.multiply(rows)
    for count in (15, 17, 31, 33, 47, 49, 63):
        assert torch.equal(whole.multiply(rows[:count]), expected[:count])


def test_without_a_compiler_onednn_is_called_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda _: None)
    layer, rows = nn.Linear(64, 64), torch.randn(1, 64)
    alone = PackedLinear(layer)
    assert alone.skinny_gemm is None
    torch.testing.assert_close(alone(rows), layer(rows))
