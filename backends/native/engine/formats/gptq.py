"""GPTQ, as AutoGPTQ and GPTQModel write it: 2, 4 or 8 bits, a scale and a zero for each group of inputs.

Source: AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py; GPTQModel for `checkpoint_format = "gptq_v2"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.formats.levels import Levels
from backends.native.engine.formats.packing import unpack

PARTS = ("qweight", "qzeros", "scales", "g_idx")


def levels(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Levels:
    """The weight [outputs, inputs]."""
    # By the shapes: layers may have other bits than the configuration says of most (`dynamic`, `extra_config`).
    bits = 32 * parts["qzeros"].shape[1] // parts["qweight"].shape[1]
    if bits not in (2, 4, 8):
        raise ValueError(f"it has {bits} bits")
    numbers = unpack(parts["qweight"], bits, 0)  # [inputs, outputs]
    zeros = unpack(parts["qzeros"], bits, 1)  # [groups, outputs]
    if str(quantization.get("checkpoint_format") or "gptq").lower() == "gptq":
        # The first form keeps zeros less one; a zero of 0 was kept as -1, in so many bits.
        zeros = (zeros + 1).bitwise_and_(2**bits - 1)
    groups = parts.get("g_idx")
    length = -(-len(numbers) // len(zeros))
    neighbours = torch.arange(len(numbers)) // length
    # With `desc_act` the groups' inputs are not neighbours.
    order = None if groups is None or torch.equal(groups.long(), neighbours) else groups.long()
    return Levels(bits, numbers.T, zeros.T, parts["scales"].float().T, order)
