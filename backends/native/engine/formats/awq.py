"""AWQ, as AutoAWQ writes it (`version = "gemm"`): 4-bit numbers, a scale and a zero for each group of inputs.

Source: casper-hansen/AutoAWQ, awq/modules/linear/gemm.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from backends.native.engine.formats.levels import Levels
from backends.native.engine.formats.packing import unpack

PARTS = ("qweight", "qzeros", "scales")
# Outputs that a word holds, from its lowest bits: an order that suits the instructions of its CUDA kernel.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def levels(parts: Mapping[str, Tensor], _: Mapping[str, Any]) -> Levels:
    """The weight [outputs, inputs]."""
    numbers = unpack(parts["qweight"], 4, 1, _ORDER)  # [inputs, outputs]
    zeros = unpack(parts["qzeros"], 4, 1, _ORDER)  # [groups, outputs]
    return Levels(4, numbers.T, zeros.T, parts["scales"].float().T)
