"""8-bit floats (e4m3) with a scale for the weight, for each output, or for each block of rows and columns.

Source: the checkpoints of DeepSeek V3 (`weight_scale_inv`, blocks of 128 x 128) and of fbgemm (`weight_scale`), as
transformers' finegrained_fp8 and fbgemm_fp8 read them. A scale is multiplied by, whatever its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from backends.native.engine.formats.packing import spread

PARTS = ("weight", "weight_scale_inv", "weight_scale", "input_scale", "activation_scale", "input_scale_ub")


def decode(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs], float32."""
    weight = parts["weight"].float()
    scales = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    return weight * spread(scales.float(), weight.shape, quantization.get("weight_block_size"))
