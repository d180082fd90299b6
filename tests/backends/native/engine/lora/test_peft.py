"""The reference is peft itself: what it writes is read, and a mixed batch gives the logits that it gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.errors import LoadError
from backends.native.engine.lora.config import LoraConfig, read_config
from backends.native.engine.lora.layers import LoraAdapter, LowRank, inject_lora
from backends.native.engine.lora.weights import load_lora_adapters
from backends.native.engine.runner.packed import PackedRunner
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.tiny import Tiny, build, plain, prompt, tiny
from tests.missing_tools import missing

peft = pytest.importorskip("peft", reason=missing("peft, of the extra `check-engine`"))

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]

LENGTHS, NEW = (20, 9, 33, 14), 6
NAMES = ("one", "", "other", "one")
GPT2 = {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"r": 4, "target_modules": "all-linear"}, {"r": 2, "use_rslora": True, "target_modules": ["q_proj"]}),
    ("qwen3", {"r": 8, "target_modules": r".*\.1\..*_proj"}, {"r": 2, "target_modules": ["o_proj", "up_proj"]}),
    ("phi3", {"r": 3, "target_modules": ["qkv_proj"]}, {"r": 3, "target_modules": ["gate_up_proj", "down_proj"]}),
    ("gpt2", {"r": 4, **GPT2}, {"r": 5, "lora_alpha": 3, **GPT2}),
    (
        "gemma3_text",
        {"r": 4, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {
            "r": 4,
            "target_modules": ["q_proj", "mlp.up_proj"],
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {r"layers\.0\.mlp.up_proj": 20},
            "exclude_modules": ["layers.1.self_attn.q_proj"],
        },
    ),
]
cases = pytest.mark.parametrize(("family", "one", "other"), CASES, ids=[case[0] for case in CASES])


def adapted(family: str, one: dict[str, Any], other: dict[str, Any], folder: Path) -> tuple[Any, dict[str, str]]:
    """peft's model with two random LoRA adapters, and the folders that it wrote."""
    torch.manual_seed(7)
    model = peft.get_peft_model(
        copy.deepcopy(plain(family)), peft.LoraConfig(init_lora_weights=False, **one), adapter_name="one"
    )
    model.add_adapter("other", peft.LoraConfig(init_lora_weights=False, **other))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(20)
    model.save_pretrained(folder)
    return model.eval(), {name: str(folder / name) for name in ("one", "other")}


def error(model: Any, runs: Tiny) -> float:
    """The most by which a mixed batch's logprobs differ from peft's, of the prompts and of what was generated."""
    asked = [
        Submit(seq, prompt(length, seq), NEW, top_logprobs=0, prompt_logprobs=0, lora_adapter=name)
        for seq, (length, name) in enumerate(zip(LENGTHS, NAMES, strict=True))
    ]
    answers, worst = runs.answers(asked, apart=1), 0.0
    for request in asked:
        answer = answers[request.seq]
        tokens = torch.tensor([[*request.prompt, *answer.ids]])
        rows = expected(model, request.lora_adapter, tokens)
        logprobs = [each.logprob for each in (*answer.prompt[1:], *answer.logprobs)]
        wanted = rows[:-1].gather(1, tokens[0, 1:, None])[:, 0]
        worst = max(worst, float((torch.tensor(logprobs) - wanted).abs().max()))
    return worst


@torch.inference_mode()
def expected(model: Any, lora_adapter: str, tokens: torch.Tensor) -> torch.Tensor:
    """peft's logprobs [tokens, vocabulary]."""
    if not lora_adapter:
        with model.disable_adapter():
            logits = model(tokens).logits
    else:
        model.set_adapter(lora_adapter)
        logits = model(tokens).logits
    return logits[0].float().log_softmax(-1)


def engine(family: str, found: dict[str, LoraAdapter]) -> Tiny:
    model = build(family)
    inject_lora(model, found)
    return tiny(PackedRunner(model, KVCache(64, 4), lora_adapters=("one", "other")))


@cases
def test_a_mixed_batch_gives_peft_s_logprobs(family: str, one: Any, other: Any, tmp_path: Path) -> None:
    model, folders = adapted(family, one, other, tmp_path)
    found = load_lora_adapters(plain(family), folders)
    assert error(model, engine(family, found)) < 1e-4
    assert error(model, engine(family, {"one": found["other"], "other": found["one"]})) > 1e-2
    halves = {layer: LowRank(pair.a, pair.b / 2) for layer, pair in found["other"].items()}
    assert error(model, engine(family, found | {"other": halves})) > 1e-2


@cases
def test_the_same_layers_are_changed(family: str, one: Any, other: Any) -> None:
    linear = [name for name, layer in plain(family).named_modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    for fields in (one, other):
        model = peft.get_peft_model(copy.deepcopy(plain(family)), peft.LoraConfig(**fields))
        changed = {name.removeprefix("base_model.model.") for name, each in model.named_modules() if has_lora(each)}
        config = LoraConfig(**{key: tuple(v) if isinstance(v, list) else v for key, v in ours(fields).items()})
        assert {name for name in linear if name != "lm_head" and config.changes(name)} == changed


def has_lora(module: Any) -> bool:
    return hasattr(module, "lora_A")


def ours(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key in LoraConfig.__struct_fields__}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"use_dora": True}, "`use_dora` is True"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` is"),
        ({"bias": "lora_only"}, "`bias` is 'lora_only'"),
        ({"trainable_token_indices": [1, 2]}, "`trainable_token_indices` is"),
    ],
)
def test_what_peft_writes_and_we_do_not_apply_is_refused(fields: Any, why: str, tmp_path: Path) -> None:
    config = peft.LoraConfig(target_modules=["q_proj"], **fields)
    peft.get_peft_model(copy.deepcopy(plain("llama")), config).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=why):
        read_config(tmp_path)
