"""GGUF files of a tiny Llama, written by ggml's own package, for tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

WIDTH, FEED, HEADS, KEY_HEADS, LAYERS = 256, 256, 4, 2, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Where a block of these types has its scales in float16. The package reads these types and cannot write them, except
# for those that are added below.
_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"), (0,)),
    "IQ1_M": (),
}
ONLY_READ = tuple(_SCALES)
_SCALES |= {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}


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
    turns = cycle(kinds)
    for name, shape in shapes(len(tokens)).items():
        kind = next(turns) if len(shape) > 1 else "F32"
        if name != leave_out:
            _add(writer, name, shape, kind, random)
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
    elif kind in ONLY_READ:
        writer.add_tensor(name, random_blocks(shape, kind, random), raw_dtype=GGMLQuantizationType[kind])
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        quantized = GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, quantized), raw_dtype=quantized)


def random_blocks(shape: tuple[int, ...], kind: str, random: Any) -> Any:
    """Random valid blocks of a type in `_SCALES`, bytes, of values about as wide as `_add`'s."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
    _set_scales(blocks, kind, 1.0)
    spread = float(dequantize(blocks.reshape(shape[0], -1), GGMLQuantizationType[kind]).std())
    _set_scales(blocks, kind, 1.5 / shape[-1] ** 0.5 / spread)
    return blocks.reshape(shape[0], -1)


def _set_scales(blocks: Any, kind: str, scale: float) -> None:
    number = np.float16(scale)
    for place in _SCALES[kind]:
        blocks[..., place : place + 2] = np.frombuffer(number.tobytes(), np.uint8)
    if kind == "IQ1_M":  # four bits of its scale are in the upper half of every second of the last eight bytes
        for part in range(4):
            bits = int(number.view(np.uint16)) >> 4 * part & 15
            blocks[..., 49 + 2 * part] = blocks[..., 49 + 2 * part] & 15 | bits << 4
