"""Tensors of GGUF files.

The values of quantized types are computed by the package `gguf`; how an architecture's tensors are called and laid out
in transformers is transformers' own table (`modeling_gguf_pytorch_utils`). Its loader is not used, because it reads the
header of a file with a large vocabulary for half a minute.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_header import Tensor as Place
from backends.native.checkpoints.gguf_header import read_header

# Tensors that a model does not have: what they say is in its configuration.
_IN_CONFIG = re.compile(r"^rope_freqs\.weight$|\.attn_rot_embd$|\.rope_freqs$")


def read_gguf(file: Path, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Read all tensors of a model, by their names in transformers.

    Args:
        file: the model's only or first file.
        model: a model of transformers with the file's configuration, on `meta`.
        dtype: of the tensors.

    Raises:
        CheckpointError: the file is damaged, or has tensors that the model has no place for.
    """
    header = read_header(file)
    # Processors take the numbers of heads from it, and may put tensors that they join (experts) into `made`.
    processor = _processor(model, header.architecture)
    names = _names(model, processor)
    made: dict[str, Any] = {"tensors": {}}
    unused = []
    for place in header.tensors.values():
        values = _values(place)
        result = processor.process(weights=values, name=place.name, tensor_key_mapping=names, parsed_parameters=made)
        if result.name in names:
            made["tensors"][names[result.name]] = torch.from_numpy(np.ascontiguousarray(result.weights)).to(dtype)
        elif result.name is not None and not _IN_CONFIG.search(place.name):
            unused.append(place.name)
    if unused:
        # transformers would leave them out silently: the answers of a model without its biases are noise.
        raise CheckpointError(f"{file} has {len(unused)} tensors that {type(model).__name__} does not: {unused[0]} ...")
    tensors: dict[str, Tensor] = made["tensors"]
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def tensor_names(model: Any, architecture: str) -> dict[str, str]:
    """The names of a model's tensors in transformers by those in GGUF files."""
    return _names(model, _processor(model, architecture))


def _processor(model: Any, architecture: str) -> Any:
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    return TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())


def _names(model: Any, processor: Any) -> dict[str, str]:
    """The names of tensors in transformers by those in GGUF files."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    # Some architectures were converted from the class without an output layer, so both classes' names count. Given
    # modules with children, the function would make its table of all tensors of the architecture again for each child.
    names: dict[str, str] = {}
    for part, prefix in ((model, ""), (model.base_model, f"{model.base_model_prefix}.")):
        flat = SimpleNamespace(config=model.config, state_dict=part.state_dict, named_children=dict)
        names = get_gguf_hf_weights_map(flat, processor, qual_name=prefix) | names
    return names


def read_tensor(place: Place) -> Tensor:
    """The values of a tensor, float32."""
    return torch.from_numpy(_values(place).copy())


def _values(place: Place) -> Any:
    """The values of a tensor, a float32 array of its shape."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    # A plain array over the mapping: each slice of a `memmap` costs many times as much.
    stored = np.asarray(np.memmap(place.file, np.uint8, mode="r", offset=place.start, shape=(place.size,)))
    kind = GGMLQuantizationType(place.kind)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        plain = np.float32 if kind == GGMLQuantizationType.F32 else np.float16
        return stored.view(plain).reshape(place.shape).astype(np.float32)
    rows = stored.reshape(*place.shape[:-1], -1)
    return dequantize(rows, kind).reshape(place.shape)
