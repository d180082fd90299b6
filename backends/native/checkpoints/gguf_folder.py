"""Write what a GGUF file says beside its tensors as a checkpoint folder: configuration, tokenizer, chat template.

``python -m backends.native.checkpoints.gguf_folder FILE FOLDER``: a process of its own, since it imports torch and
reads a file that is not trusted. Exit code 1 if the file cannot be read; the reason is its last line on standard error.

The tensors stay in the file, of which the folder has the path (`WEIGHTS`). transformers knows how the keys of an
architecture are called in its configuration, and how a vocabulary becomes a tokenizer. What it does not read is added
here and in `gguf_config`: further keys, scaled rotary positions, the split of digits, all tokens that end a turn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_config import complete, rope_of
from backends.native.checkpoints.gguf_header import Header, read_header
from backends.native.checkpoints.layout import WEIGHTS

# Keys of the metadata that name tokens at which an answer ends: of a text, of a turn, of a message.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn whatever the keys say: many files name the end of a text only (as llama.cpp has it).
_END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|eom_id|>", "<EOT>")
_CONTROL = 3  # a token's type
# Vocabularies that split digits, of which transformers knows the letters' split only.
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
# The parameters of Llama 3's scaled positions that all its files have; the files themselves have the result.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def main(argv: Sequence[str]) -> int:
    """Write the folder; return the exit code."""
    file, folder = map(Path, argv)
    # Before the import of transformers: huggingface_hub reads the variable once, when it is imported.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        write_folder(file, folder)
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def write_folder(file: Path, folder: Path) -> None:
    """Write the folder of a GGUF file; it exists and is empty.

    Raises:
        CheckpointError: the file is damaged, or of an architecture or vocabulary that is not read.
    """
    header = read_header(file)
    if not isinstance(header.metadata.get("tokenizer.ggml.tokens"), list):
        raise CheckpointError(f"{file} has no vocabulary")
    try:
        config = _config(file, header)
        tokenizer = _tokenizer(file, header)
    # transformers raises errors of many kinds, with the file's fault in them.
    except (ValueError, KeyError, TypeError, IndexError, NotImplementedError, ImportError) as error:
        raise CheckpointError(f"{file}: transformers cannot read it: {type(error).__name__}: {error}") from error
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ends = _end_tokens(header)
    (folder / "generation_config.json").write_bytes(msgspec.json.encode({"eos_token_id": ends} if ends else {}))
    (folder / WEIGHTS).write_text(str(file.resolve()))


def _config(file: Path, header: Header) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CheckpointError(f"{file} is a {config.model_type}, which is not a language model")
    config.dtype = "bfloat16"  # about the precision of quantized weights; of small models it becomes float32
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    # transformers looks into the first file of a split model only.
    config.tie_word_embeddings = config.tie_word_embeddings and "output.weight" not in header.tensors
    complete(config, header, file)
    scaling = _scaling(file, header, config)
    if scaling is not None:
        rope = rope_of(config)
        if rope is None:
            config.rope_parameters = scaling
        else:
            rope.update(scaling)
    return config


def _scaling(file: Path, header: Header, config: Any) -> dict[str, Any] | None:
    """How rotary positions are scaled, in transformers' words; None if they are not, or transformers has read it.

    Raises:
        CheckpointError: they are scaled in a way that cannot be followed.
    """
    if header.architecture == "gpt-oss":
        return None
    kind, factor = header.own("rope.scaling.type"), header.own("rope.scaling.factor")
    original = header.own("rope.scaling.original_context_length")
    if "rope_freqs.weight" in header.tensors:
        return _llama3_scaling(file, header, config)
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": float(factor)}
    if kind == "yarn" and factor and original:
        return {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": int(original)}
    by_tensor = sorted(name for name in header.tensors if name.startswith("rope_factors"))
    if kind not in (None, "none") or by_tensor:
        how = kind if kind not in (None, "none") else by_tensor[0]
        raise CheckpointError(f"{file} scales its rotary positions by '{how}', which is not read from GGUF files")
    return None


def _llama3_scaling(file: Path, header: Header, config: Any) -> dict[str, Any]:
    """Llama 3's scaling. The file has a factor for each frequency; transformers computes them from four numbers."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from backends.native.engine.formats.gguf import read_tensor

    factors = read_tensor(header.tensors["rope_freqs.weight"])
    found = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
    plain = dict(config.rope_parameters)
    config.rope_parameters = {**plain, **found}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    config.rope_parameters = plain
    dimensions = 2 * len(factors)
    expected = plain["rope_theta"] ** -(torch.arange(0, dimensions, 2) / dimensions) / factors
    if scaled.shape != expected.shape or not torch.allclose(scaled, expected, rtol=1e-4):
        raise CheckpointError(f"{file} scales its rotary positions by factors that are not those of Llama 3")
    return found


def _tokenizer(file: Path, header: Header) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if header.metadata.get("tokenizer.ggml.pre") in _DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


def _end_tokens(header: Header) -> list[int]:
    """The ids of the tokens at which an answer ends."""
    metadata = header.metadata
    ids = {metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS}
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    tokens = zip(metadata["tokenizer.ggml.tokens"], kinds, strict=False)
    ids |= {id for id, (token, kind) in enumerate(tokens) if kind == _CONTROL and token in _END_TOKENS}
    return sorted(id for id in ids if isinstance(id, int))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
