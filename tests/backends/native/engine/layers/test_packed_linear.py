"""Packed linear layers give what plain ones give; layers that cannot be packed stay."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForImageTextToText

from backends.native.engine.kernels.gemv import takes_all_rows
from backends.native.engine.layers import packed_linear
from backends.native.engine.layers.packed_linear import PackedLinear, pack_linears
from backends.native.engine.loading.self_check import why_not_packed
from tests.backends.native.engine.test_equality_with_generate import assert_equal, requests
from tests.backends.native.engine.tiny import FAMILIES, build, packed_runner, tiny
from tests.backends.native.multimodal.tiny import save_llava

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),
]


@pytest.mark.parametrize("shape", [(1, 24), (33, 24), (70, 24), (1, 5, 24), (0, 24), (1, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_it_equals_the_plain_layer(shape: tuple[int, ...], bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40, bias=bias)).to(dtype)
    rows = torch.randn(shape).to(dtype)
    with torch.inference_mode():
        expected = model(rows)
        pack_linears(model, least=1)
        torch.testing.assert_close(model(rows), expected, atol=tolerance, rtol=tolerance)


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 33, 70])
def test_bfloat16_where_onednn_does_not_multiply_it(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not takes_all_rows(torch.bfloat16, 24):
        pytest.skip("nothing was compiled, or instructions for matrices multiply bfloat16 here")
    monkeypatch.setattr(packed_linear, "onednn_multiplies", lambda dtype: False)
    model, rows = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 3)).bfloat16(), torch.randn(count, 24).bfloat16()
    expected = model(rows)
    pack_linears(model, least=1)
    assert [type(part) for part in model] == [PackedLinear, PackedLinear]
    torch.testing.assert_close(model(rows), expected, atol=2e-2, rtol=2e-2)
    odd = nn.Sequential(nn.Linear(23, 40)).bfloat16()
    pack_linears(odd, least=1)
    assert type(odd[0]) is nn.Linear


@pytest.mark.parametrize("columns", [1, 5, 70])
def test_its_weight_multiplies_columns_as_a_tensor_does(columns: int) -> None:
    torch.manual_seed(0)
    layer, given = nn.Linear(24, 40), torch.randn(2, 24, columns)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(layer).weight @ given, layer.weight @ given, atol=1e-5, rtol=1e-5)


def test_only_plain_layers_in_float32_and_bfloat16_are_packed() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"float16": nn.Linear(4, 4).half(), "special": Special(4, 4), "plain": nn.Linear(4, 4)})
    pack_linears(model, least=1)
    assert [type(part) for part in model.values()] == [nn.Linear, Special, PackedLinear]


def test_small_weights_are_left_alone() -> None:
    model = nn.ModuleDict({"small": nn.Linear(63, 64), "large": nn.Linear(64, 64)})
    pack_linears(model)
    assert [type(part) for part in model.values()] == [nn.Linear, PackedLinear]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_weights_of_a_text_model_are_packed_in_bfloat16_and_its_towers_are_left_alone(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    if not packed_linear._is_packable(torch.empty(24, 48, dtype=dtype), 48):
        pytest.skip("nothing multiplies bfloat16 here")
    model = AutoModelForImageTextToText.from_pretrained(save_llava(tmp_path), dtype=dtype)
    text, tower = model.model.language_model.layers[0].self_attn, model.model.vision_tower.encoder.layers[0].self_attn
    assert text.k_proj.weight.numel() == 24 * 48
    assert tower.k_proj.weight.numel() == 32 * 32
    pack_linears(model)
    assert type(text.k_proj) is (nn.Linear if dtype == torch.float32 else PackedLinear)
    assert type(tower.k_proj) is nn.Linear


class Around(nn.Module):
    """Reads weights as Mamba does."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.cast, self.fused, self.factor = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and rows.dim() == 1:
            return rows @ self.fused.weight.T
        made = self.fused(self.cast(rows.to(self.cast.weight.dtype)))
        return (self.factor.weight @ made.unsqueeze(-1))[..., 0] @ self.read.weight.T


def test_layers_whose_numbers_the_module_around_them_reads_are_left_alone() -> None:
    model, rows = nn.Sequential(Around().eval()), torch.randn(3, 8)
    expected = model(rows)
    pack_linears(model, least=1)
    assert {name: type(part) for name, part in model[0].named_children()} == {
        "read": nn.Linear,
        "cast": PackedLinear,
        "fused": PackedLinear,
        "factor": PackedLinear,
    }
    torch.testing.assert_close(model(rows), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_answers_as_generate_does(family: str) -> None:
    runner = packed_runner(family)
    runner._model = copy.deepcopy(runner._model)
    pack_linears(runner._model, least=1)
    asked = requests()
    assert_equal(family, asked, tiny(runner).answers(asked, apart=1))


def test_the_self_check_finds_a_model_that_cannot_be_packed() -> None:
    def wrong(model: Any) -> None:
        pack_linears(model, least=1)
        model.lm_head.forward = lambda rows: rows.new_zeros(*rows.shape[:-1], model.lm_head.out_features)

    def broken(model: Any) -> None:
        pack_linears(model, least=1)
        model.lm_head.forward = lambda rows: rows @ model.lm_head.weight.T

    model = build("llama")
    assert why_not_packed(model, change=partial(pack_linears, least=1)) is None
    assert "other logits" in (why_not_packed(model, change=wrong) or "")
    assert "AttributeError" in (why_not_packed(model, change=broken) or "")


def test_a_small_layer_has_the_skinny_gemm_with_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        few = PackedLinear(nn.Linear(896, 128, dtype=torch.bfloat16)).skinny_gemm
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    alone = PackedLinear(nn.Linear(896, 128, dtype=torch.bfloat16)).skinny_gemm
    assert (few is None) == (alone is None)
