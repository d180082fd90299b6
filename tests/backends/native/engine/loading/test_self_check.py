"""The self-check: it accepts what is right, and detects every known way of being wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlavaConfig, LlavaForConditionalGeneration

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams, Kernel
from backends.native.engine.attention.kv_cache import LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.errors import LoadError
from backends.native.engine.loading import self_check
from backends.native.engine.loading.self_check import why_not_packed
from backends.native.engine.loading.stacking_check import find_stacking
from backends.native.engine.loading.tiny_copy import shrunken_config
from backends.native.engine.runner import packed
from backends.native.engine.state.step import StateView
from tests.backends.native.engine.tiny import FAMILIES, build

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_models_are_packed(family: str) -> None:
    assert why_not_packed(build(family)) is None


@pytest.mark.parametrize("family", ["lfm2", pytest.param("qwen3_5_text", marks=pytest.mark.slow)])
def test_recurrent_models_are_packed(family: str) -> None:
    assert why_not_packed(build(family)) is None


def test_models_with_other_state_are_not_packed() -> None:
    assert why_not_packed(build("rwkv")) == "it has no attention interface"


def test_recurrent_layers_without_their_state_are_detected_by_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "separate_sequences", lambda _: False)
    why = why_not_packed(build("lfm2"))
    assert why is not None
    assert "gives other logits when packed" in why


@pytest.mark.parametrize("lost", ["conv", "recurrent"])
def test_a_lost_state_is_detected(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = StateView._get

    def get(view: StateView, name: Any) -> torch.Tensor | None:
        state = own(view, name)
        return torch.zeros_like(state) if state is not None and name[1] == lost else state

    monkeypatch.setattr(StateView, "_get", get)
    why = why_not_packed(build("falcon_h1"))
    assert why is not None
    assert "gives other logits when packed" in why


def wrong(**changes: Any) -> Kernel:
    def kernel(
        queries: torch.Tensor,
        cache: LayerCache,
        block_size: int,
        metadata: AttentionMetadata,
        params: AttentionParams,
    ) -> torch.Tensor:
        return reference_kernel(queries, cache, block_size, metadata, replace(params, **changes))

    return kernel


def forgetful(
    queries: torch.Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
) -> torch.Tensor:
    """Sees the tokens of this step only."""
    cut = AttentionMetadata(metadata.slots, metadata.query_lengths, metadata.query_lengths, metadata.block_tables)
    return reference_kernel(queries, cache, block_size, cut, params)


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        ("llama", forgetful),
        ("llama", wrong(scale=0.2)),
        ("llama", wrong(sliding_window=9)),
        ("mistral", wrong(sliding_window=None)),
        ("gemma3_text", wrong(sliding_window=None)),
        ("gemma2", wrong(softcap=None)),
        ("gpt_oss", wrong(sinks=None)),
    ],
)
def test_a_wrong_kernel_is_detected(family: str, kernel: Kernel) -> None:
    why = why_not_packed(build(family), kernel)
    assert why is not None
    assert "gives other logits when packed" in why


def test_a_composite_model_is_checked_whole() -> None:
    text = build("llama").config
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **vision},
        text_config=text.to_dict(),
        image_token_index=90,
    )
    assert why_not_packed(LlavaForConditionalGeneration(config).eval()) is None


@pytest.mark.parametrize("check", [why_not_packed, find_stacking])
def test_lack_of_memory_is_no_verdict(check: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(self_check, "shrunken_copy", full)
    with pytest.raises(LoadError, match=r"no memory of cpu for the small copy .* CUDA out of memory"):
        check(build("llama"))


def test_the_check_leaves_the_model_and_the_random_state_alone() -> None:
    model = build("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    why_not_packed(model)
    assert torch.equal(torch.rand(3), expected)
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.config._attn_implementation == "eager"


def test_a_large_configuration_becomes_small_and_keeps_its_kinds() -> None:
    config = build("gemma3_text").config
    config.num_hidden_layers = 12
    config.layer_types = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4096, 32, 8, 128
    small = shrunken_config(config, few_heads=True, few_layers=True)
    assert small.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    assert (small.num_attention_heads, small.num_key_value_heads, small.hidden_size) == (4, 2, 512)
    assert config.num_hidden_layers == 12


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("kimi_linear", {"linear_num_heads": 2}),
        ("mamba2", {"chunk_size": 16}),
        ("falcon_h1", {"mamba_chunk_size": 16}),
        ("olmo_hybrid", {"linear_num_key_heads": 2, "linear_num_value_heads": 2}),
        (
            "qwen3_5_text",
            {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
        ),  # two value heads to a key head stay
        ("xlstm", {"chunk_size": 64}),  # no recurrent state of its name
    ],
)
def test_recurrent_layers_of_the_small_copy_are_small(family: str, sizes: dict[str, int]) -> None:
    small = shrunken_config(AutoConfig.for_model(family), few_heads=True, few_layers=True)
    assert {name: getattr(small, name) for name in sizes} == sizes
