"""The weights of a model, as a format gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backends.native.engine.kernels.block_product import Blocks


class Weights(NamedTuple):
    """A model's weights by their names in transformers.

    Attributes:
        tensors: all of them, or for an accelerator what reads each (`formats.streaming`); of one that is in `blocks` a
            placeholder that has its shape and takes no memory.
        blocks: those that stay quantized.
    """

    tensors: dict[str, Any]
    blocks: dict[str, Blocks]


def placeholders(blocks: Mapping[str, Blocks], dtype: torch.dtype) -> dict[str, Tensor]:
    """What stands for `blocks` among the tensors."""
    nothing = torch.zeros((), dtype=dtype)
    return {name: nothing.expand(found.outputs, found.inputs) for name, found in blocks.items()}
