"""What GGUF files say about a model beyond the keys that transformers reads.

transformers leaves its defaults for a key that its table lacks. Where tensors then have other shapes, loading fails;
but another base of the rotary positions only makes the answers wrong. Keys by their names in llama.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_header import Header

# Key of the architecture: the names that configurations have for it.
_KEYS = {
    "context_length": ("n_positions",),
    "feed_forward_length": ("n_inner", "ffn_hidden_size"),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_epsilon": ("norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Gemma's queries are scaled by the width of a head, but in the models of 27B, which are known by their layers, by the
# hidden width over the heads. No key says so.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3_text": 62}
# Architectures of which transformers reads all keys, and gives some of them a meaning of their own.
_COMPLETE = ("gemma4", "gpt-oss")


def complete(config: Any, header: Header, file: Path) -> None:
    """Add to a configuration, in place, what transformers has not read of its file.

    Raises:
        CheckpointError: the file is of a form whose tensors transformers would misread.
    """
    if header.architecture in _COMPLETE:
        return
    if header.architecture == "falcon" and header.own("attention.head_count_kv") != 1:
        raise CheckpointError(f"{file}: a Falcon with several key heads is not read from GGUF files")
    read = _read_by_transformers(config.model_type)
    for key, names in _KEYS.items():
        value = header.own(key)
        if value is None or read.get(key) in names:
            continue
        for name in names:
            if name in vars(config):  # not what a configuration computes from others
                setattr(config, name, value)
    if config.model_type in _GEMMA_27B_LAYERS:
        large = config.num_hidden_layers == _GEMMA_27B_LAYERS[config.model_type]
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if large else config.head_dim
    _complete_rope(config, header)
    for name in _TOKENS:
        # A default of the class may be the id of a larger vocabulary.
        if isinstance(getattr(config, name, None), int) and getattr(config, name) >= config.vocab_size:
            setattr(config, name, None)


def rope_of(config: Any) -> dict[str, Any] | None:
    """The parameters of the rotary positions, of layers with full attention where there are several kinds."""
    found: dict[str, Any] | None = getattr(config, "rope_parameters", None)
    return found.get("full_attention", found) if found else None


def _complete_rope(config: Any, header: Header) -> None:
    rope = rope_of(config)
    if rope is None:
        return
    base, width = header.own("rope.freq_base"), header.own("rope.dimension_count")
    if base:
        rope["rope_theta"] = base
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if width and (width != head or "partial_rotary_factor" in rope):
        rope["partial_rotary_factor"] = width / head


def _read_by_transformers(model_type: str) -> dict[str, str | None]:
    """The names in the configuration of the keys that transformers reads."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    found: dict[str, str | None] = GGUF_CONFIG_MAPPING.get(model_type.removesuffix("_text"), {})
    return found
