"""Packed experts beside quantized layers, and of quantized checkpoints, give the logits of transformers over the same
weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from backends.native.engine.factory import load_engine
from backends.native.engine.layers.packed_linear import PackedExperts
from backends.native.engine.layers.quantized_linear import BITS, QuantizedLinear, quantize_linears
from backends.native.engine.loading import weights
from backends.native.engine.loop import Engine
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.formats.test_quantized import CASES
from tests.backends.native.engine.formats.test_quantized import save as save_quantized
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, Answer, Tiny, prompt

pytestmark = [pytest.mark.torch, needs_compiler]

_SHAPE = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts_per_tok": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": _SHAPE | {"num_local_experts": 4},
    "qwen3_moe": _SHAPE | {"num_experts": 4, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "gpt_oss": _SHAPE | {"num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]},
}
"""Of a size from which experts are packed."""
FORMATS = ["fp8-block", "fp8-tensor", "fbgemm", "float-8", "int-8", "pack-8-ordered", "pack-4", "awq", "gptq-4"]


def save(kind: str, folder: Path) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **KINDS[kind]))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


def engine_of(folder: Path, **options: Any) -> Tiny:
    given = {"device": "cpu", "threads": 1, "kv_tokens": 1024, "max_sequences": 8} | options
    engine, ready = load_engine(EngineOptions(str(folder), **given), lambda _: None)
    assert isinstance(engine, Engine)
    assert ready.execution_path == "packed"
    kinds = {type(module) for module in engine._runner._model.modules()}  # type: ignore[attr-defined]
    assert PackedExperts in kinds
    assert (QuantizedLinear in kinds) == (options.get("dtype") in BITS)
    return Tiny(engine, engine._scheduler, engine._runner)


def difference(model: Any, served: Tiny) -> float:
    """The largest difference of a token's logprob, of prompts and answers alone and together."""
    asked = [Submit(seq, prompt(6 + 9 * seq, seq), 8, prompt_logprobs=0, top_logprobs=0) for seq in range(5)]
    alone = [served.answers([one])[one.seq] for one in asked]
    together = served.answers(asked)
    found = [_difference(model, one.prompt, answer) for one, answer in zip(asked, alone, strict=True)]
    return max(*found, *(_difference(model, one.prompt, together[one.seq]) for one in asked))


@torch.inference_mode()
def _difference(model: Any, given: tuple[int, ...], answer: Answer) -> float:
    tokens = torch.tensor([[*given, *answer.ids]])
    expected = model(tokens, use_cache=False).logits[0].log_softmax(-1)
    expected = expected[:-1].gather(1, tokens[0, 1:, None]).squeeze(1)
    found = torch.tensor([each.logprob for each in (*answer.prompt[-len(given) + 1 :], *answer.logprobs)])
    return float((found - expected).abs().max())


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_beside_rounded_layers(kind: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_multiplies_bfloat16", lambda: False)  # so that roundings hide nothing
    folder = save(kind, tmp_path)
    served = engine_of(folder, dtype=dtype)
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert difference(own, served) > 1e-3
    assert quantize_linears(own, BITS[dtype]) == 8
    assert difference(own, served) < 1e-4


@pytest.mark.parametrize("case", FORMATS)
def test_of_quantized_checkpoints(case: str, tmp_path: Path) -> None:
    own = save_quantized(tmp_path, *CASES[case], AutoConfig.for_model("qwen3_moe", **KINDS["qwen3_moe"]))
    assert difference(own, engine_of(tmp_path)) < 1e-4
    experts: list[Callable[..., Any]] = [module for module in own.modules() if hasattr(module, "gate_up_proj")]
    for each in experts:
        each.gate_up_proj.data.mul_(1.01)  # type: ignore[attr-defined]
    assert difference(own, engine_of(tmp_path)) > 1e-3
