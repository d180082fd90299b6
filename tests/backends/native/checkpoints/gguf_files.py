"""GGUF files of a tiny Llama, written by ggml's own package, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

WIDTH, FEED, HEADS, KEY_HEADS, LAYERS = 256, 256, 4, 2, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_tokens() -> list[str]:
    """The tokens of single bytes, as byte-level vocabularies spell them (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: control tokens, bytes, and one word."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    return [*CONTROL, *byte_tokens(), *(merge.replace(" ", "") for merge in merges)], merges


def shapes(vocabulary_size: int) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, by their names in the file."""
    head = WIDTH // HEADS
    layer = {
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (head * KEY_HEADS, WIDTH),
        "attn_v": (head * KEY_HEADS, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (FEED, WIDTH),
        "ffn_up": (FEED, WIDTH),
        "ffn_down": (WIDTH, FEED),
    }
    found = {"token_embd.weight": (vocabulary_size, WIDTH), "output_norm.weight": (WIDTH,)}
    return found | {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in layer.items()}


def write_llama(
    file: Path,
    *,
    kinds: tuple[str, ...] = ("F32",),
    more: Callable[[GGUFWriter], None] = lambda _: None,
    leave_out: str = "",
) -> Path:
    """Write a Llama with random weights.

    Args:
        file: where to.
        kinds: ggml's types of the matrices, in turn.
        more: adds keys or tensors.
        leave_out: a tensor that is not written.
    """
    tokens, merges = vocabulary()
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    for place, (name, shape) in enumerate(shapes(len(tokens)).items()):
        if name != leave_out:
            _add(writer, name, shape, kinds[place % len(kinds)], random)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add(writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: str, random: Any) -> None:
    values = random.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        writer.add_tensor(name, 1 + 0.1 * values)
        return
    values *= 1.5 / shape[-1] ** 0.5  # wide: logits depend on the whole context
    if kind == "F32":
        writer.add_tensor(name, values)
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        quantized = GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, quantized), raw_dtype=quantized)
