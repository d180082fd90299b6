"""What `tensor_parallel` refuses, before anything is loaded or started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from backends.native.engine import factory
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.loading import splitting
from backends.native.protocol.engine_options import EngineOptions
from tests.backends.native.engine.tiny import FAMILIES, RECURRENT

pytestmark = pytest.mark.torch

SHAPE = FAMILIES["llama"]
GEMMA = {"text_config": SHAPE, "vision_config": {"num_hidden_layers": 1, "hidden_size": 16}}
QUANTIZED = SHAPE | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 16}}
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "heads": ("llama", SHAPE | {"num_attention_heads": 3, "num_key_value_heads": 3}, {}, "attention_heads of 3 cannot"),
    "key heads": ("llama", SHAPE | {"num_key_value_heads": 1}, {}, "num_key_value_heads of 1 cannot be divided by 2"),
    "key heads of a part": ("gemma3", GEMMA | {"text_config": SHAPE | {"num_key_value_heads": 1}}, {}, "heads of 1"),
    "no plan": ("gpt2", FAMILIES["gpt2"], {}, "no plan for splitting a gpt2; leave out tensor_parallel"),
    "recurrent": ("lfm2", RECURRENT["lfm2"], {}, "lfm2"),
    "images": ("gemma3", GEMMA, {}, "set text_only = true"),
    "an encoder": ("bert", {"num_hidden_layers": 1}, {}, "Only models that generate text"),
    "quantized": ("llama", QUANTIZED, {}, "quantized weights cannot be split"),
    "int8": ("llama", SHAPE, {"dtype": "int8"}, "int8 cannot be split; set another dtype"),
    "LoRA": ("llama", SHAPE, {"lora_adapters": {"a": "/a"}}, "LoRA adapters cannot be split"),
    "LoRA later": ("llama", SHAPE, {"lora_folder": "/a"}, "LoRA adapters cannot be split"),
    "per-sequence": ("llama", SHAPE, {"execution_path": "per_sequence"}, "only the packed execution path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused_before_it_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, shape, options, why = REFUSED[name]
    AutoConfig.for_model(family, **shape).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()  # nobody reads it
    for step in ("load", "load_encoder", "LeadingGang"):
        monkeypatch.setattr(factory, step, lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(LoadError, match=why):
        load_engine(EngineOptions(str(tmp_path), tensor_parallel=2, **options), lambda _: None)


def test_devices_that_are_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "accelerator", lambda: torch.device("cuda"))
    with pytest.raises(LoadError, match="this machine has accelerators"):
        splitting.check_split(EngineOptions(str(tmp_path), tensor_parallel=2, device="cpu"))
    monkeypatch.setattr(splitting, "pick_device", torch.device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    with pytest.raises(LoadError, match="the devices up to 3, and torch finds 3; set fewer"):
        splitting.check_split(EngineOptions(str(tmp_path), tensor_parallel=2, device="cuda:2"))
