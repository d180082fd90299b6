"""8-bit floats (e4m3) with a scale for the weight, for each output, or for each block of rows and columns.

Source: the checkpoints of DeepSeek V3 (`weight_scale_inv`, blocks of 128 x 128) and of fbgemm (`weight_scale`), as
transformers' finegrained_fp8 and fbgemm_fp8 read them. A scale is multiplied by, whatever its name, but in folders of
GPTQModel (7.7, nn_modules/qlinear/fp8.py), which say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.formats.packing import spread

PARTS = ("weight", "weight_scale_inv", "weight_scale", "input_scale", "activation_scale", "input_scale_ub")


def decode(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs], float32."""
    weight = parts["weight"]
    if not weight.is_floating_point():
        raise ValueError(f"it is {weight.dtype}")  # DeepSeek V4's experts: two 4-bit floats in a byte
    scales = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)  # powers of two, of which some checkpoints keep the exponents' bytes
    scales = spread(scales.float(), weight.shape, quantization.get("weight_block_size"))
    divided = quantization.get("weight_scale_semantics") == "inverse"
    return weight.float() / scales if divided else weight.float() * scales
