"""torchao, as transformers writes it with safetensors: 8-bit floats or integers, a scale for each output or group.

Source: pytorch/ao (0.18), torchao/prototype/safetensors and quantization/quantize_/workflows/{float8,int8}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from backends.native.engine.formats.packing import spread

PARTS = ("_weight_qdata", "_weight_scale", "_weight_zero_point")


def decode(parts: Mapping[str, Tensor], _: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs], float32."""
    weight = parts["_weight_qdata"].float()
    zeros = parts.get("_weight_zero_point")
    if zeros is not None:
        weight = weight - spread(zeros.float(), weight.shape)
    return weight * spread(parts["_weight_scale"].float(), weight.shape)
