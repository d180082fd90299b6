"""Weights that go to an accelerator one by one: the same model as on the CPU, without a copy of it on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlavaConfig, LlavaForConditionalGeneration

from backends.native.engine.errors import LoadError
from backends.native.engine.formats.streaming import Streamed
from backends.native.engine.loading.weights import load
from tests.backends.native.engine.formats.test_quantized import CASES
from tests.backends.native.engine.formats.test_quantized import save as save_quantized
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import DeviceTensor, PretendedDevice
from tests.backends.native.engine.tiny import build

pytestmark = [pytest.mark.torch, needs_compiler]


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that were streamed."""
    found: list[Tensor] = []
    send = Streamed.to

    def noted(self: Streamed, *given: Any, **more: Any) -> Tensor:
        found.append(send(self, *given, **more))
        return found[-1]

    monkeypatch.setattr(Streamed, "to", noted)
    return found


def assert_as_on_the_cpu(folder: Path, dtype: str = "auto") -> None:
    expected = load(str(folder), dtype, "cpu").model
    with PretendedDevice():
        found = load(str(folder), dtype, "cuda").model
        state = {**dict(found.named_buffers()), **found.state_dict()}
    for name, tensor in {**dict(expected.named_buffers()), **expected.state_dict()}.items():
        assert isinstance(state[name], DeviceTensor), name
        assert torch.equal(state[name].raw, tensor), name


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama", True), ("mixtral", False)])
def test_a_model_is_the_one_of_the_cpu(
    family: str, tied: bool, dtype: str, tmp_path: Path, streamed: list[Tensor]
) -> None:
    """Also with experts that transformers joins, in several files, and in another dtype."""
    model = build(family)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_as_on_the_cpu(tmp_path, dtype)
    assert len(streamed) >= 20


def test_a_composite_model(tmp_path: Path, streamed: list[Tensor]) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **vision},
        text_config=build("llama").config.to_dict(),
        image_token_index=90,
    )
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    assert_as_on_the_cpu(tmp_path)
    assert streamed


@pytest.mark.parametrize("case", ["awq", "fp8-block", "nf4"])
def test_quantized_weights_are_computed_one_by_one(case: str, tmp_path: Path, streamed: list[Tensor]) -> None:
    save_quantized(tmp_path, *CASES[case])
    assert_as_on_the_cpu(tmp_path, "float32")
    assert streamed


def test_a_damaged_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_quantized(tmp_path, *CASES["gptq-4"])
    layer, whole = "model.layers.1.mlp.up_proj", load_file(tmp_path / "model.safetensors")
    save_file(whole | {f"{layer}.scales": torch.ones(1, 3)}, tmp_path / "model.safetensors")
    with PretendedDevice(), pytest.raises(LoadError, match=f"^the weight of {layer} cannot be read: "):
        load(str(tmp_path), device="cuda")


def test_a_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    del whole["model.layers.1.mlp.up_proj.weight"]
    save_file(whole, tmp_path / "model.safetensors", {"format": "pt"})
    with PretendedDevice(), pytest.raises(LoadError, match=r"lack 1 tensors .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load(str(tmp_path), device="cuda")


def test_the_host_holds_no_copy_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds beside pages of files is measured after each tensor. On `meta` the model itself takes nothing."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8
    )
    model = LlamaForCausalLM(config)
    size = sum(each.nbytes for each in model.parameters())
    assert size > 90e6
    model.save_pretrained(tmp_path)
    del model
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # else, by its number of threads, a few tensors at a time
    held: list[int] = []
    send = Streamed.to

    def measured(self: Streamed, *given: Any, **more: Any) -> Tensor:
        found = send(self, *given, **more)
        held.append(private_memory())
        return found

    monkeypatch.setattr(Streamed, "to", measured)
    before = private_memory()
    assert load(str(tmp_path), "bfloat16", "meta").model.device.type == "meta"
    assert len(held) > 50
    assert max(held) - before < size / 4


def private_memory() -> int:
    """The bytes of this process that are not pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
