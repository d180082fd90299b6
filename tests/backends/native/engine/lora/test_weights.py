"""Reading LoRA adapters for a model: what fits, and why what does not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlavaConfig, LlavaForConditionalGeneration

from backends.native.engine.errors import LoadError
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.lora.weights import load_lora_adapters
from tests.backends.native.engine.lora.folders import save
from tests.backends.native.engine.tiny import build, plain

pytestmark = pytest.mark.torch

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
TARGETS = r".*(q_proj|v_proj)"


def test_matrices_are_read_with_the_scaling_in_them(tmp_path: Path) -> None:
    model = plain("llama")
    folder = save(tmp_path / "x", model, TARGETS, 0, r=4, alpha=6)
    tensors = load_file(folder / "adapter_model.safetensors")
    found = load_lora_adapters(model, {"x": str(folder)})["x"]
    assert sorted(found) == [f"model.layers.{index}.self_attn.{each}_proj" for index in (0, 1) for each in "qv"]
    pair = found["model.layers.0.self_attn.q_proj"]
    torch.testing.assert_close(pair.a, tensors[f"{Q0}.lora_A.weight"])
    torch.testing.assert_close(pair.b, tensors[f"{Q0}.lora_B.weight"].T * 1.5)


def test_they_have_the_model_s_dtype(tmp_path: Path) -> None:
    model = build("llama").bfloat16()
    found = load_lora_adapters(model, {"x": str(save(tmp_path / "x", model, TARGETS, 0))})["x"]
    assert {each.dtype for pair in found.values() for each in (pair.a, pair.b)} == {torch.bfloat16}


Tensors = dict[str, torch.Tensor]


def renamed(tensors: Tensors) -> None:
    tensors[Q0.replace(".0.", ".7.") + ".lora_A.weight"] = tensors.pop(f"{Q0}.lora_A.weight")


def strange(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_magnitude_vector"] = torch.ones(4)


def embedding(tensors: Tensors) -> None:
    tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.ones(4, 4)


def last(tensors: Tensors) -> None:
    tensors["base_model.model.lm_head.lora_A.weight"] = torch.ones(4, 48)


def without_b(tensors: Tensors) -> None:
    del tensors[f"{Q0}.lora_B.weight"]


def without_layer(tensors: Tensors) -> None:
    del tensors[f"{Q0}.lora_A.weight"], tensors[f"{Q0}.lora_B.weight"]


def more(tensors: Tensors) -> None:
    for matrix in "AB":
        key = f"{Q0}.lora_{matrix}.weight"
        tensors[key.replace("q_proj", "o_proj")] = tensors[key].clone()


def wide(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_A.weight"] = torch.ones(5, 48)


def infinite(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_A.weight"][0, 0] = torch.inf


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (renamed, "is for another model: there is no linear layer 'model.layers.7.self_attn.q_proj'"),
        (strange, f"has a tensor '{Q0}.lora_magnitude_vector', which is not supported"),
        (embedding, "has a tensor 'base_model.model.model.embed_tokens.lora_embedding_A', which is not supported"),
        (last, "there is no linear layer 'lm_head' in this one that can be adapted"),
        (without_b, r"the tensors for 'model.layers.0.self_attn.q_proj' are of shapes \{'A': \(4, 48\)\}"),
        (without_layer, "lacks tensors for 'model.layers.0.self_attn.q_proj', in contradiction to `target_modules`"),
        (more, "has tensors for 'model.layers.0.self_attn.o_proj', in contradiction to `target_modules`"),
        (wide, r"with `r` 4 this model takes A \(4, 48\) and B \(48, 4\)"),
        (infinite, "has numbers for 'model.layers.0.self_attn.q_proj' that are not finite"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(change: Callable[[Tensors], None], why: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "x", plain("llama"), TARGETS, 0)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(LoadError, match=why) as refused:
        load_lora_adapters(plain("llama"), {"x": str(folder)})
    assert f"'{path}'" in str(refused.value)


def test_a_lost_or_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "x", plain("llama"), TARGETS, 0)
    path = folder / "adapter_model.safetensors"
    path.write_bytes(b"damaged")
    with pytest.raises(LoadError, match=r"adapter_model.safetensors' cannot be read"):
        load_lora_adapters(plain("llama"), {"x": str(folder)})
    path.unlink()
    with pytest.raises(LoadError, match=r"adapter_model.safetensors' cannot be read"):
        load_lora_adapters(plain("llama"), {"x": str(folder)})


def composite() -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **vision},
        text_config=build("llama").config.to_dict(),
        image_token_index=90,
    )
    return LlavaForConditionalGeneration(config).eval()


def test_only_the_language_model_has_lora_adapters(tmp_path: Path) -> None:
    model = composite()
    text = save(tmp_path / "text", model, r".*language_model.*q_proj", 0)
    assert len(load_lora_adapters(model, {"x": str(text)})["x"]) == 2
    both = save(tmp_path / "both", model, r".*q_proj", 0)
    with pytest.raises(LoadError, match="LoRA adapters are applied to the language model's layers only"):
        load_lora_adapters(model, {"x": str(both)})


class Placeholder(nn.Module):
    """What has taken a layer's place, and keeps it."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.many = linear


def test_layers_that_were_replaced_keep_their_names(tmp_path: Path) -> None:
    model = build("llama")
    folder = save(tmp_path / "x", model, r".*mlp.*", 0)
    for layer in model.model.layers:
        layer.mlp.up_proj = Placeholder(layer.mlp.up_proj)
    pack_linears(model.model.layers[0].mlp, least=1)
    assert len(load_lora_adapters(model, {"x": str(folder)})["x"]) == 6


def test_all_linear_is_all_but_the_last(tmp_path: Path) -> None:
    folder = save(tmp_path / "x", plain("llama"), r"model\.layers.*proj", 0)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": "all-linear"}))
    assert len(load_lora_adapters(plain("llama"), {"x": str(folder)})["x"]) == 14
