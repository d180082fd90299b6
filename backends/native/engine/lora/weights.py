"""Reads LoRA adapters from folders as peft's `save_pretrained` writes them, to fit a model.

Strict both ways: a tensor that no layer of the model takes is refused, and so is a file that lacks one that the
configuration promises. Half a LoRA adapter runs without an error and is not what was trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from backends.native.engine.attention.interface import text_part
from backends.native.engine.errors import LoadError
from backends.native.engine.lora.config import LoraConfig, read_config
from backends.native.engine.lora.layers import LoraAdapter, LowRank

FILE = "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<matrix>[AB])\.weight")


def load_lora_adapters(model: Any, folders: Mapping[str, str]) -> dict[str, LoraAdapter]:
    """Read the LoRA adapters in `folders`, by name, for `model` as it was loaded.

    Raises:
        LoadError: one is not there, is damaged, or cannot be applied to this model as it was trained.
    """
    layers = _linear_layers(model)
    return {name: _load(Path(folder), model, layers) for name, folder in folders.items()}


def _load(folder: Path, model: Any, layers: Mapping[str, Any]) -> LoraAdapter:
    config, path = read_config(folder), folder / FILE
    pairs = _read_pairs(path)
    text = _names_within(model)
    for layer in pairs:
        if layer not in layers:
            raise LoadError(
                f"'{path}' is for another model: there is no linear layer '{layer}' in this one that can be adapted."
            )
        if layer not in text:
            raise LoadError(
                f"'{path}' changes '{layer}'; LoRA adapters are applied to the language model's layers only."
            )
    # The symmetric difference: layers that are promised and absent, and layers that are there and not promised.
    if differing := {layer for layer in layers if config.changes(layer)} ^ set(pairs):
        layer = min(differing)
        verb = "has tensors" if layer in pairs else "lacks tensors"
        raise LoadError(f"'{path}' {verb} for '{layer}', in contradiction to `target_modules` beside it.")
    return {layer: _low_rank(path, config, layer, found, model, layers[layer]) for layer, found in pairs.items()}


def _read_pairs(path: Path) -> dict[str, dict[str, Tensor]]:
    """By layer, matrices "A" and "B"."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"'{path}' cannot be read: {error}.") from error
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None:
            raise LoadError(f"'{path}' has a tensor '{key}', which is not supported.")
        pairs.setdefault(found["layer"], {})[found["matrix"]] = tensor
    return pairs


def _low_rank(
    path: Path, config: LoraConfig, layer: str, found: Mapping[str, Tensor], model: Any, linear: Any
) -> LowRank:
    """One layer's matrices, ready to be multiplied by."""
    rank, inputs, outputs = config.rank(layer), *_widths(linear)
    shapes = {matrix: tuple(tensor.shape) for matrix, tensor in found.items()}
    if shapes != {"A": (rank, inputs), "B": (outputs, rank)}:
        raise LoadError(
            f"'{path}': the tensors for '{layer}' are of shapes {shapes}; with `r` {rank} this model takes "
            f"A {(rank, inputs)} and B {(outputs, rank)}."
        )
    # Scaled once, in float32, and rounded once: no multiplication by the scaling in each step.
    scaled = found["B"].float().T * config.scaling(layer)
    pair = LowRank(*(each.to(model.device, model.dtype).contiguous() for each in (found["A"], scaled)))
    if not bool(torch.isfinite(pair.a).all() and torch.isfinite(pair.b).all()):
        raise LoadError(f"'{path}' has numbers for '{layer}' that are not finite.")
    return pair


def _linear_layers(model: Any) -> dict[str, Any]:
    """The model's linear layers by name, but for its last, and for parts of what has taken a layer's place."""
    last = model.get_output_embeddings()
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if _is_linear(module) and module is not last and name.rpartition(".")[0] not in found:
            found[name] = module
    return found


def _is_linear(module: Any) -> bool:
    """Whether it is torch's, GPT-2's, or one that took the place of torch's."""
    return hasattr(module, "out_features") or hasattr(module, "nf")


def _widths(linear: Any) -> tuple[int, int]:
    """Its inputs and outputs."""
    return (linear.nx, linear.nf) if hasattr(linear, "nf") else (linear.in_features, linear.out_features)


def _names_within(model: Any) -> set[str]:
    """The names of what the model's tokens go through, but for the last layer."""
    text = text_part(model)
    (prefix,) = [name for name, module in model.named_modules() if module is text]
    return {f"{prefix}.{name}".removeprefix(".") for name, _ in text.named_modules()}
