"""Layers in 8 bits on accelerators: close to the original ones, and the same however many rows they are given."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from backends.native.engine.errors import LoadError
from backends.native.engine.layers import int8_linear
from backends.native.engine.layers.fusion import join
from backends.native.engine.layers.int8_linear import MAX_ROWS, Int8Linear, quantize_on_device
from backends.native.engine.loading.weights import load
from tests.backends.native.engine.tiny import build
from tests.missing_tools import missing

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def linear(*, outputs: int = 40, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(outputs)
    return nn.Linear(96, outputs, bias=bias).to(dtype)


@pytest.fixture(params=["expanded", pytest.param("triton", marks=pytest.mark.slow)])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's kernel, in its interpreter, or by the expanded weight."""
    if request.param == "expanded":
        return
    if find_spec("triton") is None:
        pytest.skip(missing("triton"))
    from backends.native.engine.kernels.triton_linear import multiply_int8

    monkeypatch.setattr(int8_linear, "find_routine", lambda *_: multiply_int8)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (16,), (17,), (1, 3), (MAX_ROWS + 1,), (0,), (1, 0)])
def test_a_product_is_that_of_the_rounded_weight(shape: tuple[int, ...], bias: bool) -> None:
    plain = linear(bias=bias)
    rounded = Int8Linear.of(plain, CPU)
    rows = torch.randn(*shape, 96)
    with torch.inference_mode():
        expected = nn.functional.linear(rows, rounded.weight, plain.bias)
        torch.testing.assert_close(rounded(rows), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_way")
def test_rows_need_not_be_adjacent() -> None:
    rounded, rows = Int8Linear.of(linear(), CPU), torch.randn(3, 5, 2, 96)[:, :, 1]
    with torch.inference_mode():
        torch.testing.assert_close(rounded(rows), rounded(rows.contiguous()))


def test_the_rounding_error_is_bounded() -> None:
    """By half a level, of which the largest weight of an output has 127."""
    plain = linear()
    error = (Int8Linear.of(plain, CPU).weight - plain.weight).abs().amax(1)
    assert (error <= plain.weight.abs().amax(1) / 127 * 0.501).all()
    assert (error > 0).all()


def test_joined_layers_give_the_outputs_of_each() -> None:
    parts = [Int8Linear.of(linear(outputs=outputs), CPU) for outputs in (8, 24, 16)]
    joined, rows = join(*parts), torch.randn(3, 96)
    assert isinstance(joined, Int8Linear)
    with torch.inference_mode():
        torch.testing.assert_close(joined(rows), torch.cat([part(rows) for part in parts], dim=-1))
    assert join(parts[0], linear()) is None
    assert join(parts[0], Int8Linear.of(linear(bias=False), CPU)) is None
    assert join(parts[0], Int8Linear.of(linear(dtype=torch.float16), CPU)) is None


def test_all_plain_layers_but_the_head_are_quantized() -> None:
    model = build("llama")
    assert quantize_on_device(model, torch.device("meta")) == 14
    assert type(model.lm_head) is nn.Linear
    layers = [module for module in model.modules() if isinstance(module, Int8Linear)]
    assert {(layer.levels.dtype, layer.levels.device.type, layer.dtype) for layer in layers} == {
        (torch.int8, "meta", torch.float32)
    }


@pytest.mark.parametrize(
    ("family", "dtype", "why"),
    [
        ("llama", "int4", "^The dtype int4 is for CPUs, not for meta; int8 is for both"),
        ("gpt2", "int8", "^This model has no linear layers that could run in int8"),
    ],
)
def test_what_cannot_be_quantized_is_refused(
    family: str, dtype: str, why: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(family)
    build(family).save_pretrained(folder)
    with pytest.raises(LoadError, match=why):
        load(str(folder), dtype, "meta")
