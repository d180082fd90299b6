"""`adapter_config.json`: the keys that are read, and the values that are rejected with the key's name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from backends.native.engine.errors import LoadError
from backends.native.engine.lora.config import LoraConfig, read_config

pytestmark = pytest.mark.torch

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}
# What peft 0.21 writes beside the keys that are read.
WRITTEN: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers.models.llama"},
    "base_model_name_or_path": "llama",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "fan_in_fan_out": True,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.1,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "revision": None,
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
}


def read(folder: Path, **fields: Any) -> LoraConfig:
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | fields))
    return read_config(folder)


def test_what_peft_writes_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, **WRITTEN)
    assert (config.r, config.lora_alpha, config.use_rslora) == (4, 6, False)
    assert config.target_modules == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("layer_replication", [[0, 2]]),
        ("target_parameters", ["experts.gate_up_proj"]),
        ("trainable_token_indices", [1]),
        ("alora_invocation_tokens", [1]),
        ("use_qalora", True),
        ("megatron_config", {"a": 1}),
        ("arrow_config", {"top_k": 2}),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("something_new", {"a": 1}),
    ],
)
def test_what_is_not_done_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=rf"adapter_config.json': `{key}` is "):
        read(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"target_modules": 3}, "is not valid: Expected"),
        ({"target_modules": None}, "is not valid: Expected"),
        ({"target_modules": "("}, "is not valid: missing"),
        ({"r": "4"}, "is not valid: Expected"),
        ({"r": 0}, "a rank is less than 1"),
        ({"rank_pattern": {"q_proj": 0}}, "a rank is less than 1"),
    ],
)
def test_a_damaged_one_is_refused(fields: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=why):
        read(tmp_path, **fields)


def test_no_file_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"There is no LoRA adapter in .*: adapter_config.json cannot be read"):
        read_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(LoadError, match=r"adapter_config.json' is not valid"):
        read_config(tmp_path)


Q1, V1 = "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"


@pytest.mark.parametrize(
    ("fields", "layer", "changed"),
    [
        ({}, Q1, True),
        ({}, "model.layers.1.self_attn.k_proj", False),
        ({}, "model.layers.1.self_attn.eq_proj", False),
        ({"target_modules": ["q_proj"]}, "q_proj", True),
        ({"target_modules": ["self_attn.q_proj"]}, Q1, True),
        ({"target_modules": ["1.self_attn.q_proj"]}, "model.layers.11.self_attn.q_proj", False),
        ({"target_modules": "all-linear"}, V1, True),
        ({"target_modules": "ALL-LINEAR"}, V1, True),
        ({"target_modules": r".*\.q_proj"}, Q1, True),
        ({"target_modules": r"q_proj"}, Q1, False),
        ({"target_modules": r".*(q|v)_proj", "exclude_modules": r".*\.1\..*"}, Q1, False),
        ({"exclude_modules": ["q_proj"]}, Q1, False),
        ({"exclude_modules": ["q_proj"]}, V1, True),
        ({"target_modules": "all-linear", "exclude_modules": ["v_proj"]}, V1, False),
        ({"layers_to_transform": 1}, Q1, True),
        ({"layers_to_transform": [0, 2]}, Q1, False),
        ({"layers_to_transform": [0]}, "model.layers.0.experts.1.q_proj", True),
        ({"layers_to_transform": [0]}, "q_proj", True),
        ({"layers_to_transform": [1], "layers_pattern": "layers"}, Q1, True),
        ({"layers_to_transform": [1], "layers_pattern": ["blocks", "layers"]}, Q1, True),
        ({"layers_to_transform": [1], "layers_pattern": "blocks"}, Q1, False),
        ({"layers_to_transform": []}, Q1, True),
    ],
)
def test_which_layers_it_changes(fields: Any, layer: str, changed: bool, tmp_path: Path) -> None:
    assert read(tmp_path, **fields).changes(layer) is changed


@pytest.mark.parametrize(
    ("fields", "rank", "scaling"),
    [
        ({}, 4, 1.5),
        ({"use_rslora": True}, 4, 3.0),
        ({"rank_pattern": {"q_proj": 2}}, 2, 3.0),
        ({"rank_pattern": {"v_proj": 2}}, 4, 1.5),
        ({"alpha_pattern": {"q_proj": 8}}, 4, 2.0),
        ({"rank_pattern": {r"layers\.[01].*": 2}, "alpha_pattern": {"self_attn.q_proj": 8}}, 2, 4.0),
        ({"rank_pattern": {"q_proj": 2}, "use_rslora": True}, 2, 6 / math.sqrt(2)),
    ],
)
def test_how_strongly(fields: Any, rank: int, scaling: float, tmp_path: Path) -> None:
    config = read(tmp_path, **fields)
    assert config.rank(Q1) == rank
    assert config.scaling(Q1) == pytest.approx(scaling)
