"""The check at load passes layers that can have LoRA adapters, and tells of those that cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.llama import modeling_llama

from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.loading.lora_check import why_not_adapted
from backends.native.engine.lora.layers import LoraLinear
from tests.backends.native.engine.tiny import FAMILIES, build

pytestmark = pytest.mark.torch

LINEAR = ("Linear", "Conv1D")


def layers(model: Any) -> set[str]:
    return {name for name, each in model.named_modules() if type(each).__name__ in LINEAR and "lm_head" not in name}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_many_families_can_have_lora_adapters(family: str) -> None:
    model = build(family)
    assert why_not_adapted(model, layers(model), "packed") is None
    assert why_not_adapted(model, layers(model), "per_sequence") is None


def test_layers_of_a_hybrid_model_can_have_lora_adapters() -> None:
    """Also within recurrent layers, which are called for one prompt at a time."""
    model = build("lfm2")
    assert any(".conv." in name for name in layers(model))
    assert why_not_adapted(model, layers(model), "packed") is None


@pytest.mark.parametrize("family", ["lfm2", "bloom"])
def test_layers_can_have_adapters_on_the_per_sequence_path(family: str) -> None:
    model = build(family)
    assert why_not_adapted(model, layers(model), "per_sequence") is None


def test_a_packed_model_can_have_them() -> None:
    model = build("llama")
    names = layers(model)
    pack_linears(model, least=1)
    assert why_not_adapted(model, names, "packed") is None


class Experts(nn.Module):
    """Every second row goes to another expert."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mixed = torch.empty_like(rows)
        for index, expert in enumerate(self.experts):
            mine = rows[..., 0].gt(0) == bool(index)
            mixed[mine] = expert(rows[mine])
        return mixed


class OwnProduct(nn.Module):
    """Multiplies by a layer's weight itself."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.inner.weight)


class Unused(nn.Module):
    """Has a layer that changes nothing."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Experts, "given [0-9]+ of a step's"),
        (OwnProduct, "'LoraLinear' object has no attribute 'weight'"),
        (Unused, "hardly depends on the adapted layers"),
    ],
)
def test_layers_that_cannot_have_adapters_are_named(
    part: type[nn.Module], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_llama, "LlamaMLP", part)
    model = build("llama")
    names = {name for name in layers(model) if ".mlp." in name}
    assert re.search(why, why_not_adapted(model, names, "packed") or "")


def late(self: Any, rows: torch.Tensor) -> torch.Tensor:
    """LoRA adapters that add to every row."""
    product: torch.Tensor = self._linear.forward(rows)
    for pair in self.by_name.values():
        product += rows @ pair.a.T @ pair.b
    return product


@pytest.mark.parametrize("wrong", [late, lambda self, rows: self._linear.forward(rows)])
def test_wrong_products_of_lora_adapters_are_detected(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoraLinear, "forward", wrong)
    model = build("llama")
    for execution_path in ("packed", "per_sequence"):
        assert "other logits" in (why_not_adapted(model, layers(model), execution_path) or "")
