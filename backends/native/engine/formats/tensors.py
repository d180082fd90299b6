"""The tensors of a checkpoint whose weights are in another format than transformers' own."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.native.checkpoints.gguf_header import read_header
from backends.native.checkpoints.layout import gguf_of
from backends.native.engine.formats.gguf import read_gguf


def read_tensors(folder: Path, config: Any, auto_class: Any, dtype: torch.dtype) -> dict[str, Tensor] | None:
    """The tensors of a model by their names in transformers; None if transformers can read the folder itself.

    Args:
        folder: the checkpoint.
        config: its configuration.
        auto_class: the class of transformers that would load it.
        dtype: of the tensors.

    Raises:
        backends.native.checkpoints.errors.CheckpointError: they cannot be read.
    """
    if (file := gguf_of(folder)) is not None:
        with torch.device("meta"):
            skeleton = model_class(auto_class, config)(copy.deepcopy(config))
        return read_gguf(file, skeleton, dtype)
    return None


def float32_bytes(folder: Path, own: torch.dtype) -> int:
    """The bytes that the weights would have in float32, about.

    Args:
        folder: the checkpoint.
        own: the dtype of its weights.
    """
    if (file := gguf_of(folder)) is not None:
        tensors = read_header(file).tensors.values()
        return sum(math.prod(tensor.shape) for tensor in tensors) * torch.float32.itemsize
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return size * torch.float32.itemsize // own.itemsize


def model_class(auto_class: Any, config: Any) -> Any:
    """The class of transformers that an automatic class stands for."""
    return auto_class._model_mapping[type(config)]  # noqa: SLF001 - the table that `from_pretrained` reads
