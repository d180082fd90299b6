"""The tensors of a checkpoint whose weights are in another format than transformers' own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from backends.native.checkpoints.folder import read_json
from backends.native.checkpoints.gguf_header import read_header
from backends.native.checkpoints.layout import gguf_of
from backends.native.checkpoints.quantization import bits_of, method_of, read_quantization
from backends.native.engine.formats.gguf import Keep, read_gguf
from backends.native.engine.formats.quantized import FORMATS, read_quantized
from backends.native.engine.formats.streaming import stream_plain
from backends.native.engine.formats.weights import Weights


def read_weights(
    folder: Path, config: Any, auto_class: Any, dtype: torch.dtype, device: torch.device, keep: Keep | None = None
) -> Weights | None:
    """The weights of a model; None if transformers can read the folder itself.

    Args:
        folder: the checkpoint.
        config: its configuration.
        auto_class: the class of transformers that would load it.
        dtype: of the tensors.
        device: where they go.
        keep: of which modules weights stay quantized if they can; None: of none.

    Raises:
        backends.native.checkpoints.errors.CheckpointError: they cannot be read.
    """
    if (file := gguf_of(folder)) is not None:
        return read_gguf(file, _skeleton(auto_class, config), dtype, keep)
    quantization = _quantization(folder)
    if quantization is not None:
        if keep is None:
            return read_quantized(folder, quantization, dtype, device)
        modules = dict(_skeleton(auto_class, plain(config)).named_modules())
        return read_quantized(folder, quantization, dtype, device, lambda layer: keep(modules.get(layer)))
    tensors = None if device.type == "cpu" else stream_plain(folder, config, device)
    return None if tensors is None else Weights(tensors, {})


def _skeleton(auto_class: Any, config: Any) -> Any:
    """The model without memory."""
    kind = model_class(auto_class, config)
    with torch.device("meta"):
        return kind(copy.deepcopy(config_of(kind, config)))


def plain(config: Any) -> Any:
    """The configuration of the same model with plain weights."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config(decoder=True)):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def float32_bytes(folder: Path, own: torch.dtype) -> int:
    """The bytes that the weights would have in float32, about.

    Args:
        folder: the checkpoint.
        own: the dtype of its weights.

    Raises:
        backends.native.checkpoints.errors.CheckpointError: they cannot be read.
    """
    if (file := gguf_of(folder)) is not None:
        tensors = read_header(file).tensors.values()
        return sum(math.prod(tensor.shape) for tensor in tensors) * torch.float32.itemsize
    if (quantization := _quantization(folder)) is not None:
        packed = {"I32": 32 // bits_of(quantization), "U8": 2}
        return sum(_weights_in(file, packed) for file in folder.glob("*.safetensors")) * torch.float32.itemsize
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return size * torch.float32.itemsize // own.itemsize


def is_quantized(folder: Path) -> bool:
    """Whether the weights are quantized, and read here."""
    return _quantization(folder) is not None


def has_tensors_by_name(folder: Path) -> bool:
    """Whether tensors of a folder can be read by their names, be they plain or quantized."""
    return gguf_of(folder) is None and (_described(folder) is None or is_quantized(folder))


def read_some(folder: Path, dtype: torch.dtype, wanted: Callable[[str], object]) -> dict[str, torch.Tensor] | None:
    """Tensors of a folder whose weights are quantized, as what they stand for; None if its weights are plain.

    Args:
        folder: the checkpoint.
        dtype: of the result.
        wanted: whether a file's tensor of a name is read.

    Raises:
        backends.native.checkpoints.errors.CheckpointError: they cannot be read.
    """
    quantization = _quantization(folder)
    if quantization is None:
        return None
    return read_quantized(folder, quantization, dtype, torch.device("cpu"), wanted=wanted).tensors


def model_class(auto_class: Any, config: Any) -> Any:
    """The class of transformers that an automatic class stands for."""
    found = auto_class._model_mapping[type(config)]  # noqa: SLF001 - the table that `from_pretrained` reads
    if not isinstance(found, list | tuple):
        return found
    # Several classes for one configuration, which names its own.
    return next((kind for kind in found if kind.__name__ in (config.architectures or ())), found[0])


def config_of(kind: Any, config: Any) -> Any:
    """What of a checkpoint's configuration a class takes: all, or its text part."""
    text = config.sub_configs.get("text_config")
    return config.get_text_config() if text is not None and kind.config_class is text else config


def _quantization(folder: Path) -> dict[str, Any] | None:
    """The `quantization_config` of weights that are read here and not by transformers."""
    found = _described(folder)
    return found if found is not None and method_of(found) in FORMATS else None


def _described(folder: Path) -> dict[str, Any] | None:
    """The `quantization_config` of a folder."""
    return read_quantization(read_json(folder / "config.json") or {}, str(folder))


def _weights_in(file: Path, packed: dict[str, int]) -> int:
    """The number of weights that a file's elements stand for, of which some types hold several."""
    with safe_open(file, framework="pt") as tensors:
        slices = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118 - not a dictionary
        return sum(math.prod(each.get_shape()) * packed.get(each.get_dtype(), 1) for each in slices)
