"""Write a Qwen2 of `benchmarks.shapes` as a GGUF file. No tokenizer is needed: prompts are token ids.

The vocabulary is made up, because llama.cpp and OpenVINO load no file without one that has a special token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a layer's modules, in transformers and in GGUF."""
AROUND = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def write_gguf(model: Any, file: Path, dtype: torch.dtype) -> Path:
    """Write the file: matrices in `dtype` (bfloat16 or float16), vectors in float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

    stored, kind = {
        torch.bfloat16: (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
        torch.float16: (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    }[dtype]
    writer = GGUFWriter(file, "qwen2")
    writer.add_file_type(kind)
    _add_shape(writer, model.config)
    _add_vocabulary(writer, model.config.vocab_size)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":  # the embedding again
            continue
        if tensor.dim() == 1:
            writer.add_tensor(_named(name), tensor.float().numpy())
        else:
            writer.add_tensor(_named(name), tensor.to(dtype).view(torch.uint8).numpy(), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_shape(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_vocabulary(writer: Any, size: int) -> None:
    from gguf import TokenType

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{number}" for number in range(size)])
    writer.add_token_types([TokenType.NORMAL] * (size - 1) + [TokenType.CONTROL])
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(size - 1)


def _named(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in AROUND:
        return f"{AROUND[module]}.{kind}"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{PARTS[part]}.{kind}"
