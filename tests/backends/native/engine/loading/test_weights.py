"""Loading: every causal language model comes back as it was saved, and errors name the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, LlavaConfig, LlavaForConditionalGeneration

from backends.native.engine.errors import LoadError
from backends.native.engine.loading.weights import load
from tests.backends.native.engine.tiny import CONTEXT, FAMILIES, RECURRENT, VOCAB, build, prompt

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path)
    return tmp_path


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("family", [*FAMILIES, *RECURRENT])
def test_every_family_comes_back_as_it_was_saved(family: str, tmp_path: Path) -> None:
    saved = build(family)
    saved.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    given = torch.tensor([prompt(12, 1)])
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(given).logits, saved(given).logits, atol=1e-4, rtol=1e-4)
    assert not loaded.model.training
    assert loaded.vocab_size == VOCAB
    assert loaded.context_length == (32_768 if family in ("mamba", "mamba2") else CONTEXT)


def test_a_composite_checkpoint_answers_text(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **vision},
        text_config=build("llama").config.to_dict(),
        image_token_index=90,
    )
    saved = LlavaForConditionalGeneration(config).eval()
    saved.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    given = torch.tensor([prompt(12, 1)])
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(given).logits, saved(given).logits, atol=1e-4, rtol=1e-4)
    assert (loaded.context_length, loaded.vocab_size, loaded.eos_token_ids) == (CONTEXT, VOCAB, (2,))


def test_end_tokens_are_those_of_both_files(folder: Path) -> None:
    assert load(str(folder)).eos_token_ids == (2,)
    GenerationConfig(eos_token_id=[7, 5]).save_pretrained(folder)
    assert load(str(folder)).eos_token_ids == (2, 5, 7)


@pytest.mark.parametrize(
    ("dtype", "own", "expected"),
    [
        ("auto", torch.float32, torch.float32),
        ("auto", torch.bfloat16, torch.float32),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32),
    ],
)
def test_dtype(dtype: str, own: torch.dtype, expected: torch.dtype, tmp_path: Path) -> None:
    build("llama").to(own).save_pretrained(tmp_path)
    assert load(str(tmp_path), dtype=dtype).model.dtype == expected


def test_large_weights_keep_their_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.native.engine.loading.weights._SMALL_BYTES", 1000)
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    assert load(str(tmp_path)).model.dtype == torch.bfloat16


def _drop_a_tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})


def _reshape_a_tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = torch.zeros(3)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no \*\.safetensors file"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json' is not a configuration"),
        (lambda folder: edit(folder / "config.json", model_type="nonsense"), r"config\.json' is not a configuration"),
        (lambda folder: edit(folder / "config.json", model_type="vit"), "describes a vit, which is not a language"),
        (
            lambda folder: (folder / "generation_config.json").write_text("{"),
            r"generation_config\.json' cannot be read",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 64), "cannot be loaded"),
        (_drop_a_tensor, "lack 1 tensors"),
        (_reshape_a_tensor, "model.norm.weight|cannot be loaded"),
    ],
)
def test_the_error_names_the_damaged_file(harm: Callable[[Path], object], why: str, folder: Path) -> None:
    harm(folder)
    with pytest.raises(LoadError, match=why) as caught:
        load(str(folder))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "int3"}, "'int3' is not a dtype"),
        ({"device": "toaster"}, "'toaster' is not a device"),
        pytest.param(
            {"device": "cuda"},
            "torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_unknown_options_are_named_in_the_error(options: dict[str, str], why: str, folder: Path) -> None:
    with pytest.raises(LoadError, match=why):
        load(str(folder), **options)


def test_a_missing_folder_is_not_looked_up_on_the_hub() -> None:
    with pytest.raises(LoadError, match="There is no model folder 'meta-llama/Llama-2-7b'"):
        load("meta-llama/Llama-2-7b")
