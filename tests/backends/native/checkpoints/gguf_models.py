"""Tiny models of many architectures as GGUF files, laid out as llama.cpp's converter does it, for tests.

The converter is not a package. What it does to names is `gguf`'s own table; what it does to values, and the keys of the
configuration that it writes, stand here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from transformers import AutoConfig, AutoModelForCausalLM

from backends.native.engine.formats.gguf import tensor_names
from tests.backends.native.checkpoints.gguf_files import CONTROL, vocabulary

_TOKENS, _MERGES = vocabulary()
_SHAPE: dict[str, Any] = {
    "vocab_size": len(_TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# Numbers that differ from the defaults of the configurations: what is not read changes the logits.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SHAPE | _ROPE | {"head_dim": 24}),
    "qwen2": ("qwen2", _SHAPE | _ROPE),
    "qwen3": ("qwen3", _SHAPE | _ROPE | {"head_dim": 24}),
    "qwen2moe": ("qwen2_moe", _SHAPE | _ROPE | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen3moe": ("qwen3_moe", _SHAPE | _ROPE | _EXPERTS | {"head_dim": 24, "norm_topk_prob": True}),
    "gemma2": ("gemma2", _SHAPE | _ROPE | {"head_dim": 24, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3_text", _SHAPE | {"head_dim": 24, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "phi3": (
        "phi3",
        _SHAPE | {"sliding_window": 6, "rope_parameters": _ROPE["rope_parameters"] | {"partial_rotary_factor": 0.75}},
    ),
    "starcoder2": ("starcoder2", _SHAPE | _ROPE),
    "stablelm": ("stablelm", _SHAPE | {"use_qkv_bias": True, "partial_rotary_factor": 0.5} | _ROPE),
    "falcon": ("falcon", _SHAPE | _ROPE | {"num_key_value_heads": 1, "ffn_hidden_size": 96}),
    "gpt2": ("gpt2", {"vocab_size": len(_TOKENS), "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "bloom": ("bloom", {"vocab_size": len(_TOKENS), "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "nemotron": ("nemotron", _SHAPE | {"head_dim": 16, "partial_rotary_factor": 0.5} | _ROPE),
    "mamba": ("mamba", {"vocab_size": len(_TOKENS), "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "lfm2": ("lfm2", _SHAPE | _ROPE | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
}
"""By the architecture's name in GGUF: the type in transformers, and its configuration."""


def build(architecture: str) -> Any:
    """A model with wide random weights, in float32."""
    model_type, values = MODELS[architecture]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and "A_log" not in name and "conv1d" not in name:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
        elif "A_log" not in name:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.float().eval()


def write(model: Any, architecture: str, file: Path) -> Path:
    """Write the file of a model, in float32."""
    writer = GGUFWriter(file, architecture)
    for key, value in _metadata(model.config).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)  # type: ignore[operator]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3 if token in CONTROL else 1 for token in _TOKENS])
    writer.add_token_merges(_MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    state = model.state_dict()
    tied = model.config.get_text_config().tie_word_embeddings
    for name, found in tensor_names(model, architecture).items():
        if found not in state or (tied and name == "output.weight"):
            continue
        whole = f"{name}.weight" if name.endswith("_exps") else name
        writer.add_tensor(
            whole, np.ascontiguousarray(_converted(architecture, name, state[found].numpy(), model.config))
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _metadata(config: Any) -> dict[str, Any]:
    """What the converter writes of a configuration."""

    def value(*names: str) -> Any:
        return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)

    heads, width = value("num_attention_heads"), value("hidden_size")
    head = value("head_dim") or (width // heads if heads else None)
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        rope = rope["full_attention"]
    kinds = getattr(config, "layer_types", None) or []
    key_heads = value("num_key_value_heads", "num_kv_heads")
    epsilon = value("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
    found = {
        "context_length": value("max_position_embeddings", "n_positions") or 64,
        "embedding_length": width,
        "block_count": value("num_hidden_layers"),
        "feed_forward_length": value("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * width,
        "attention.head_count": heads or 0,
        "attention.head_count_kv": [key_heads * (kind != "conv") for kind in kinds] if "conv" in kinds else key_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": epsilon,
        "attention.layer_norm_epsilon": epsilon,
        "attention.sliding_window": value("sliding_window"),
        "rope.freq_base": rope.get("rope_theta"),
        "rope.dimension_count": head
        and int(head * (value("partial_rotary_factor") or rope.get("partial_rotary_factor", 1))),
        "vocab_size": config.vocab_size,
        "expert_count": value("num_experts"),
        "expert_used_count": value("num_experts_per_tok"),
        "expert_feed_forward_length": value("moe_intermediate_size"),
        "expert_shared_feed_forward_length": value("shared_expert_intermediate_size"),
        "attn_logit_softcapping": value("attn_logit_softcapping"),
        "final_logit_softcapping": value("final_logit_softcapping"),
        "ssm.conv_kernel": value("conv_kernel"),
        "ssm.state_size": value("state_size"),
        "ssm.time_step_rank": value("time_step_rank"),
        "ssm.inner_size": value("intermediate_size") if value("state_size") else None,
        "shortconv.l_cache": value("conv_L_cache"),
    }
    return {key: each for key, each in found.items() if each is not None}


def _converted(architecture: str, name: str, values: Any, config: Any) -> Any:
    """The values of a tensor as the converter writes them."""
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    if architecture in ("gemma2", "gemma3", "nemotron") and "norm.weight" in name:
        return values + 1
    if architecture == "gpt2" and name.rsplit(".", 2)[-2] in ("attn_qkv", "ffn_down", "ffn_up", "attn_output"):
        return values.T if values.ndim == 2 else values
    if architecture == "bloom" and "attn_qkv" in name:
        split = values.reshape(config.n_head, 3, -1, *values.shape[1:])
        return np.concatenate([split[:, part].reshape(-1, *values.shape[1:]) for part in range(3)])
    if architecture in ("qwen2moe", "qwen3moe") and ("ffn_gate_exps" in name or "ffn_up_exps" in name):
        return np.split(values, 2, axis=1)["ffn_up_exps" in name]
    if "ffn_gate_inp_shexp" in name:
        return values[0]
    if "ssm_conv1d.weight" in name or "shortconv.conv.weight" in name:
        return values[:, 0]
    return -np.exp(values) if "ssm_a" in name else values
