"""Tensors of GGUF files.

The values of quantized types are computed by the package `gguf`; how an architecture's tensors are called and laid out
in transformers is transformers' own table (`modeling_gguf_pytorch_utils`). Its loader is not used, because it reads the
header of a file with a large vocabulary for half a minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_header import Tensor as Place
from backends.native.checkpoints.gguf_header import read_header
from backends.native.engine.formats.weights import Weights, placeholders
from backends.native.engine.kernels.block_product import KINDS, Blocks

# Tensors that a model does not have: what they say is in its configuration.
_IN_CONFIG = re.compile(r"^rope_freqs\.weight$|\.attn_rot_embd$|\.rope_freqs$")


Keep = Callable[[Any], bool]
"""Whether the weight of a module may stay in blocks."""


def read_gguf(file: Path, model: Any, dtype: torch.dtype, keep: Keep | None = None) -> Weights:
    """Read all tensors of a model.

    Args:
        file: the model's only or first file.
        model: a model of transformers with the file's configuration, on `meta`.
        dtype: of the tensors.
        keep: of which modules weights stay in blocks if they can; None: of none.

    Raises:
        CheckpointError: the file is damaged, or has tensors that the model has no place for.
    """
    header = read_header(file)
    # Processors take the numbers of heads from it, and may put tensors that they join (experts) into `made`.
    processor = _processor(model, header.architecture)
    names = _names(model, processor)
    made: dict[str, Any] = {"tensors": {}}
    kept: dict[str, Blocks] = {}
    unused = []
    for place in header.tensors.values():
        found = _keep(place, model, processor, names, keep) if keep is not None else None
        if found is not None:
            name, kept[name] = names[place.name], found
            continue
        values = _values(place)
        result = processor.process(weights=values, name=place.name, tensor_key_mapping=names, parsed_parameters=made)
        if result.name in names:
            made["tensors"][names[result.name]] = torch.from_numpy(np.ascontiguousarray(result.weights)).to(dtype)
        elif result.name is not None and not _IN_CONFIG.search(place.name):
            unused.append(place.name)
    if unused:
        # transformers would leave them out silently: the answers of a model without its biases are noise.
        raise CheckpointError(f"{file} has {len(unused)} tensors that {type(model).__name__} does not: {unused[0]} ...")
    tensors = {name: tensor.to(dtype) for name, tensor in made["tensors"].items()}
    return Weights(tensors | placeholders(kept, dtype), kept)


def _keep(place: Place, model: Any, processor: Any, names: dict[str, str], keep: Keep) -> Blocks | None:
    """The blocks of a weight, in transformers' order of outputs; None if it must be expanded."""
    name = names.get(place.name, "")
    layer, _, parameter = name.rpartition(".")
    if place.kind not in KINDS or parameter != "weight" or not keep(model.get_submodule(layer)):
        return None
    order = _order(place, processor, names)
    if order is None:
        return None
    stored = np.memmap(place.file, np.uint8, mode="r", offset=place.start, shape=(place.size,))
    return Blocks.of(place.kind, torch.from_numpy(np.asarray(stored).reshape(place.shape[0], -1)[order]))


def _order(place: Place, processor: Any, names: dict[str, str]) -> Any:
    """Where the file has each output of a weight; None if a processor does more to it than to order its outputs."""
    numbers = np.arange(place.shape[0], dtype=np.float32)
    try:
        # The numbers of the outputs take the place of the weights: a column, since each output is moved as a whole.
        result = processor.process(
            weights=numbers[:, None], name=place.name, tensor_key_mapping=names, parsed_parameters={"tensors": {}}
        )
        order = result.weights[:, 0].astype(np.int64)
    except (ValueError, IndexError, KeyError):  # a processor that needs the whole matrix
        return None
    moved = result.weights.shape == (len(numbers), 1) and (np.sort(order) == numbers).all()
    return order if moved and result.name == place.name else None


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
