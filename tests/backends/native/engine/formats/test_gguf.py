"""GGUF files give the logits and tokens that transformers gives by its own loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_folder import write_folder
from backends.native.engine.errors import LoadError
from backends.native.engine.loading.weights import load
from tests.backends.native.checkpoints import gguf_models
from tests.backends.native.checkpoints.gguf_files import HEADS, KEY_HEADS, ONLY_READ, WIDTH, random_blocks, write_llama

pytestmark = pytest.mark.torch

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")


def folder_of(file: Path, folder: Path) -> Path:
    folder.mkdir()
    write_folder(file, folder)
    return folder


def logits(model: object, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]  # type: ignore[operator]


@pytest.mark.slow
def test_logits_tokens_and_template_are_those_of_transformers(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "m.gguf", kinds=KINDS)
    folder = folder_of(file, tmp_path / "folder")
    loaded = load(str(folder))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    their_tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    text = "<|im_start|>hello, hello. Über 😀<|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert ids == their_tokenizer(text)["input_ids"]
    assert ids[0] == 1
    assert tokenizer.chat_template == their_tokenizer.chat_template
    torch.testing.assert_close(logits(loaded.model, ids), logits(theirs, ids), atol=1e-5, rtol=1e-5)
    assert float((logits(loaded.model, ids) - logits(loaded.model, [5, *ids[1:]])).abs().max()) > 1e-2
    assert (loaded.context_length, loaded.vocab_size) == (64, len(tokenizer))
    # The key names the end of a text; the vocabulary has an end of turn, too.
    assert loaded.eos_token_ids == (0, 2)
    # Digits stand alone, as in the model's own tokenizer.
    assert tokenizer.tokenize("a  12") == ["a", "Ġ", "Ġ", "1", "2"]


def add_llama3_factors(writer: GGUFWriter) -> None:
    """As the converter writes them (`rope_type` llama3, factor 8)."""
    width = WIDTH // HEADS
    wavelengths = 2 * np.pi / 10000.0 ** -(np.arange(0, width, 2) / width)
    smooth = np.clip((8192 / wavelengths - 1) / (4 - 1), 0, 1)
    factors = np.where(wavelengths > 8192, 8.0, 1 / ((1 - smooth) / 8.0 + smooth))
    writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))


@pytest.mark.slow
def test_scaled_positions_are_followed(tmp_path: Path) -> None:
    folder = folder_of(write_llama(tmp_path / "m.gguf", more=add_llama3_factors), tmp_path / "folder")
    loaded = load(str(folder))
    assert loaded.config.rope_parameters == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 10000.0,
    }


def other_factors(writer: GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.full(WIDTH // HEADS // 2, 3.0, np.float32))


def long_factors(writer: GGUFWriter) -> None:
    writer.add_tensor("rope_factors_long.weight", np.full(WIDTH // HEADS // 2, 3.0, np.float32))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (other_factors, "by factors that are not those of Llama 3"),
        (long_factors, "by 'rope_factors_long.weight'"),
        (lambda writer: writer.add_string("llama.rope.scaling.type", "longrope"), "by 'longrope'"),
    ],
)
@pytest.mark.slow
def test_positions_that_cannot_be_followed_are_refused(
    more: Callable[[GGUFWriter], None], why: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=why):
        folder_of(write_llama(tmp_path / "m.gguf", more=more), tmp_path / "folder")


@pytest.mark.slow
def test_a_tensor_that_the_model_lacks_or_the_file_lacks_is_refused(tmp_path: Path) -> None:
    def bias(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.bias", np.ones(WIDTH, np.float32))

    file = write_llama(tmp_path / "m.gguf", more=bias)
    folder = folder_of(file, tmp_path / "folder")
    with pytest.raises(LoadError, match=r"1 tensors that LlamaForCausalLM does not: blk\.0\.attn_q\.bias"):
        load(str(folder))
    write_llama(file, leave_out="blk.1.ffn_up.weight")
    with pytest.raises(LoadError, match=r"lack 1 tensors .*layers\.1\.mlp\.up_proj\.weight"):
        load(str(folder))
    file.unlink()
    with pytest.raises(LoadError, match="No such file"):
        load(str(folder))


@pytest.mark.slow
def test_what_transformers_cannot_read_is_refused_by_its_words(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes().replace(b"llama", b"other"))
    with pytest.raises(CheckpointError, match=r"m\.gguf: transformers cannot read it: ValueError: .*other"):
        folder_of(file, tmp_path / "folder")


@pytest.mark.slow
def test_logits_of_packed_types_are_those_of_dequantized_weights(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "m.gguf", kinds=ONLY_READ)
    loaded = load(str(folder_of(file, tmp_path / "folder")))
    tensors = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    assert {GGMLQuantizationType(tensor.tensor_type).name for tensor in tensors.values()} == {"F32", *ONLY_READ}
    plain = AutoModelForCausalLM.from_config(loaded.config, attn_implementation="eager").float().eval()
    for name, found in gguf_models.tensor_names(plain, "llama").items():
        if name not in tensors:
            continue
        values = dequantize(tensors[name].data, tensors[name].tensor_type)
        if ".attn_q." in name or ".attn_k." in name:  # llama.cpp has the halves of a head's width in turns
            heads = HEADS if ".attn_q." in name else KEY_HEADS
            values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        plain.state_dict()[found].copy_(torch.from_numpy(values.copy()))
    ids = list(range(3, 43))
    expected = logits(plain, ids)
    torch.testing.assert_close(logits(loaded.model, ids), expected, atol=1e-3 * float(expected.abs().max()), rtol=0)


def half(block: np.ndarray, place: int) -> float:
    return float(block[place : place + 2].view(np.float16)[0])


def value_of_q4_k(block: np.ndarray, index: int) -> float:
    """ggml's `dequantize_row_q4_K` for one value: eight groups, whose scales and minima have six bits."""
    group, packed = index // 32, [int(byte) for byte in block[4:16]]
    if group < 4:
        scale, least = packed[group] & 63, packed[group + 4] & 63
    else:
        scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
        least = packed[group + 4] >> 4 | packed[group] >> 6 << 4
    bits = int(block[16 + 32 * (group // 2) + index % 32]) >> 4 * (group % 2) & 15
    return half(block, 0) * scale * bits - half(block, 2) * least


def value_of_q6_k(block: np.ndarray, index: int) -> float:
    """ggml's `dequantize_row_q6_K` for one value: sixteen groups, whose scales have eight bits."""
    part, quarter, place = index // 128, index % 128 // 32, index % 32
    low = int(block[64 * part + 32 * (quarter % 2) + place]) >> 4 * (quarter // 2) & 15
    high = int(block[128 + 32 * part + place]) >> 2 * quarter & 3
    return half(block, 208) * int(block[192 + index // 16].astype(np.int8)) * ((low | high << 4) - 32)


@pytest.mark.parametrize(("kind", "value_of"), [("Q4_K", value_of_q4_k), ("Q6_K", value_of_q6_k)])
def test_the_package_reads_blocks_as_ggml_does(kind: str, value_of: Callable[[np.ndarray, int], float]) -> None:
    blocks = random_blocks((2, 256), kind, np.random.default_rng(0))
    values = dequantize(blocks, GGMLQuantizationType[kind])
    expected = [[value_of(block, index) for index in range(256)] for block in blocks]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", gguf_models.MODELS)
def test_logits_of_other_architectures_are_the_models_own(architecture: str, tmp_path: Path) -> None:
    model = gguf_models.build(architecture)
    folder = folder_of(gguf_models.write(model, architecture, tmp_path / "m.gguf"), tmp_path / "folder")
    loaded = load(str(folder))
    assert type(loaded.model) is type(model)
    ids = list(range(3, 23))
    torch.testing.assert_close(logits(loaded.model, ids), logits(model, ids), atol=1e-4, rtol=1e-4)


def test_a_falcon_with_several_key_heads_is_refused(tmp_path: Path) -> None:
    """llama.cpp's converter orders its queries, keys and values otherwise than transformers reads them."""
    file = gguf_models.write(gguf_models.build("falcon"), "falcon", tmp_path / "m.gguf")
    key = b"falcon.attention.head_count_kv" + (4).to_bytes(4, "little")
    assert key + b"\x01" in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(key + b"\x01", key + b"\x02"))
    with pytest.raises(CheckpointError, match=r"m\.gguf: a Falcon with several key heads is not read"):
        folder_of(file, tmp_path / "folder")
