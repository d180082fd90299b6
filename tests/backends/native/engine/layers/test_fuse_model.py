"""A model with fused modules answers as `generate` does, and the self-check finds a wrong one."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
from torch import nn

from backends.native.engine.kernels import jit
from backends.native.engine.layers.fuse_model import fuse_layers
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.layers.quantized_linear import QuantizedLinear, quantize_linears
from backends.native.engine.loading.self_check import why_not_packed
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.test_equality_with_generate import assert_equal, requests
from tests.backends.native.engine.tiny import CONTEXT, FAMILIES, build, packed_runner, tiny

pytestmark = [pytest.mark.torch, needs_compiler]
WHOLE = {"llama", "qwen2", "qwen3", "mistral"}
"""Families of which all modules of a layer are replaced."""


def kinds(model: nn.Module) -> set[str]:
    return {type(part).__name__ for part in model.modules() if type(part).__module__.startswith("backends.")}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_model_answers_as_generate_does(family: str, join: bool) -> None:
    runner = packed_runner(family)
    runner._model = copy.deepcopy(runner._model)
    fuse_layers(runner._model, CONTEXT, join=join)
    assert ("FusedAttention" in kinds(runner._model)) == (family in WHOLE | {"gemma2"})
    asked = requests()
    assert_equal(family, asked, tiny(runner).answers(asked, apart=1))


@pytest.mark.parametrize("family", sorted(WHOLE))
def test_all_modules_of_a_layer_are_replaced(family: str) -> None:
    model = build(family)
    fuse_layers(model, CONTEXT)
    pack_linears(model, least=1)
    assert kinds(model) == {"FusedAttention", "FusedMLP", "FusedNorm", "PackedLinear"}


def test_attention_without_rotary_embeddings_is_fused() -> None:
    model = build("granitemoehybrid")
    assert model.config.position_embedding_type != "rope"
    fused: set[str] = set()

    def change(small: Any) -> None:
        fuse_layers(small, CONTEXT)
        fused.update(kinds(small))

    assert why_not_packed(model, change=change) is None
    assert "FusedAttention" in fused


def test_joined_linears_are_quantized_like_others() -> None:
    model = build("llama")
    fuse_layers(model, CONTEXT)
    assert quantize_linears(model, 8) == 4 * len(model.model.layers)
    assert type(model.model.layers[0].self_attn.qkv_proj) is QuantizedLinear


def test_without_a_compiler_all_modules_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda _: None)
    model = build("qwen3")
    fuse_layers(model, CONTEXT)
    assert not kinds(model)


def test_the_self_check_notices_a_wrong_one() -> None:
    fuse = partial(fuse_layers, longest=CONTEXT)

    def wrong(model: Any) -> None:
        fuse(model)
        model.model.layers[0].self_attn.heads = 0

    def shifted(model: Any) -> None:
        fuse(model)
        weight = model.model.layers[1].mlp.gate_up_proj.weight
        weight.data = weight.roll(1, 0)

    model = build("llama")
    assert why_not_packed(model, change=fuse) is None
    assert why_not_packed(model, change=wrong) is not None
    assert "other logits" in (why_not_packed(model, change=shifted) or "")


def test_unjoined_linears_keep_their_names_for_lora_adapters() -> None:
    model = build("llama")
    names = {name for name, part in model.named_modules() if type(part) is nn.Linear}
    fuse_layers(model, CONTEXT, join=False)
    assert {name for name, part in model.named_modules() if type(part) is nn.Linear} == names
    assert "FusedMLP" in kinds(model)
