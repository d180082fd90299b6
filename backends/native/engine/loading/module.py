"""Load a registered `nn.Module`: a multimodal model that transformers does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from backends.native.engine.errors import LoadError
from backends.native.multimodal.interfaces import SupportsMultiModal


def read_module(
    path: Path, config: Any, kind: type[SupportsMultiModal], dtype: torch.dtype, device: torch.device
) -> SupportsMultiModal:
    """Build the model `kind(config)` and load the weights in the folder `path` into it.

    A model with a method `load_weights(weights)`, as vLLM's models have, is given pairs of name and tensor and returns
    the names of the parameters that it has set. Without it the names must be those of the module's state.

    Raises:
        LoadError: it cannot be built, or weights are missing.
    """
    model: Any
    try:
        model = kind(config)  # type: ignore[call-arg]  # the constructor of a subclass that is an `nn.Module`
        load = getattr(model, "load_weights", None)
        if load is not None:
            missing = set(dict(model.named_parameters())) - set(load(_weights(path)))
        else:
            missing = set(model.load_state_dict(dict(_weights(path)), strict=False).missing_keys)
        model = model.to(device, dtype).eval()
    except Exception as error:  # the author's code raises errors of any kind
        raise LoadError(f"{kind.__name__} cannot be loaded from '{path}': {type(error).__name__}: {error}") from error
    # A tied weight (an output layer that is the input embedding) is in the file under one of its names.
    named = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in named.items() if name not in missing}
    absent = sorted(name for name in missing if name in named and id(named[name]) not in loaded)
    if absent:
        raise LoadError(f"The weights in '{path}' lack {len(absent)} tensors of {kind.__name__}: {absent[0]} ...")
    found: SupportsMultiModal = model
    return found


def _weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dictionary
                yield name, tensors.get_tensor(name)
