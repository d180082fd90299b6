"""GGUF files give the logits and tokens that transformers gives by its own loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_folder import write_folder
from backends.native.engine.errors import LoadError
from backends.native.engine.loading.weights import load
from tests.backends.native.checkpoints.gguf_files import HEADS, WIDTH, write_llama

pytestmark = pytest.mark.torch

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


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
