"""Tensors of a checkpoint that go to an accelerator one by one, while transformers puts them into the model.

transformers reads a tensor when its turn comes, by `tensor[...].to(device, dtype)` of whatever it is given, but to the
host, unless accelerate is installed. What it is given here goes to the accelerator instead. So the host holds the few
tensors that are on their way: those of plain folders as pages of the file, which the kernel may drop, and quantized
ones while they are computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Streamed:
    """A tensor that is read when transformers asks for it.

    Args:
        read: reads it on the host.
        device: where it goes.
    """

    def __init__(self, read: Callable[[], Tensor], device: torch.device) -> None:
        self._read = read
        self._device = device

    def __getitem__(self, _: object) -> Streamed:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> Tensor:  # noqa: ARG002 - it is the host
        """The tensor on the accelerator. It is copied as it is: the accelerator changes the dtype faster."""
        return self._read().to(self._device).to(dtype=dtype)


def stream_plain(folder: Path, config: Any, device: torch.device) -> dict[str, Streamed] | None:
    """The tensors of a folder as `save_pretrained` writes it; None if it is another one, which transformers must read.

    Args:
        folder: the checkpoint.
        config: its configuration.
        device: where they go.
    """
    if getattr(config, "quantization_config", None) or getattr(config, "transformers_weights", None):
        return None
    if getattr(type(config), "extra_files", None):
        return None
    if (folder / _WHOLE).is_file():
        names = [_WHOLE]
    elif (folder / _INDEX).is_file():
        names = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
    else:
        return None
    found = {}
    for name in names:
        file: Any = safe_open(folder / name, framework="pt")
        for tensor in file.keys():  # noqa: SIM118 - not a dictionary
            found[tensor] = Streamed(_reader(file, tensor), device)
    return found


def _reader(file: Any, name: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        tensor: Tensor = file.get_tensor(name)
        return tensor

    return read
