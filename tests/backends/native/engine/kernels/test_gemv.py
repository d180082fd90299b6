"""The compiled product gives what torch's does, and is not had where it would not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from backends.native.engine.kernels import jit
from backends.native.engine.kernels.gemv import FewRows
from backends.native.engine.layers.packed_linear import PackedLinear

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2**-8)]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),
]


def packed(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, 32)


def of(weight: torch.Tensor, bias: torch.Tensor | None) -> FewRows:
    found = FewRows.of(weight, packed(weight), bias)
    if found is None:
        pytest.skip("there is no compiler, or oneDNN has another order here")
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (192, 128), (64, 1024), (256, 608)])
def test_it_computes_the_same(dtype: torch.dtype, tolerance: float, bias: bool, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).to(dtype)
    added = torch.randn(outputs).to(dtype) if bias else None
    product = of(weight, added)
    for count in range(1, 25):
        rows = torch.randn(count, inputs).to(dtype)
        expected = functional.linear(rows.double(), weight.double(), None if added is None else added.double())
        assert product.takes(rows)
        error = (product.multiply(rows).double() - expected).abs() / (expected.abs() + inputs**0.5)
        assert error.max() < tolerance


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


def test_no_number_stays_none() -> None:
    weight = torch.ones(64, 64).bfloat16()
    weight[3, 5] = float("inf")
    rows = torch.zeros(1, 64).bfloat16()
    assert of(weight, None).multiply(rows).isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize(
    "rows", [torch.zeros(25, 64), torch.zeros(0, 64), torch.zeros(2, 32), torch.zeros(1, 64).half()]
)
def test_it_takes_only_what_it_can(rows: torch.Tensor) -> None:
    assert not of(torch.zeros(64, 64), None).takes(rows)


@pytest.mark.parametrize("shape", [(40, 64), (64, 24), (63, 63)])
def test_weights_in_another_order_are_left_to_onednn(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    assert FewRows.of(weight, packed(weight), None) is None


def test_another_order_is_noticed() -> None:
    weight = torch.randn(64, 64)
    assert FewRows.of(weight.T.contiguous(), packed(weight), None) is None


@pytest.fixture
def nothing_built(monkeypatch: Any, tmp_path: Any) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jit.load.cache_clear()
    yield monkeypatch
    jit.load.cache_clear()


def test_without_a_compiler_onednn_goes_on_alone(nothing_built: Any) -> None:
    nothing_built.setenv("PATH", "")
    layer, rows = nn.Linear(64, 64), torch.randn(1, 64)
    alone = PackedLinear(layer)
    assert alone.few_rows is None
    torch.testing.assert_close(alone(rows), layer(rows))


def test_what_does_not_compile_is_not_had(nothing_built: Any, tmp_path: Any) -> None:
    assert jit.load("wrong", "no C++") is None
    assert jit.load("wrong", "void undefined(); void uses() { undefined(); }") is None
    assert not list((tmp_path / "interlingua").glob("wrong*/*"))


def test_it_is_compiled_once(nothing_built: Any, tmp_path: Any) -> None:
    source = 'extern "C" int seven() { return 7; }'
    library = jit.load("seven", source)
    if library is None:
        pytest.skip("there is no compiler")
    assert library.seven() == 7
    [kept] = (tmp_path / "interlingua").iterdir()
    assert kept.suffix == ".so"
    nothing_built.setenv("PATH", "")
    assert jit.load("seven", source) is not None


def test_a_folder_that_cannot_be_written(nothing_built: Any, tmp_path: Any) -> None:
    (tmp_path / "interlingua").write_text("")
    assert jit.load("seven", 'extern "C" int seven() { return 7; }') is None


def test_a_user_without_a_home_goes_without(nothing_built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> None:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(jit.Path, "home", home)
    assert jit.load("seven", "") is None
