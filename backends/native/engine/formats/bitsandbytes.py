"""bitsandbytes: 4 bits by a table (nf4, fp4) with a scale for each block, and 8 bits with a scale for each output.

Source: bitsandbytes, functional.py (`QuantState`, `dequantize_4bit`, `int8_vectorwise_dequant`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from backends.native.checkpoints.errors import CheckpointError

_STATE = "weight.quant_state.bitsandbytes__"
PARTS = (
    *("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"),
    *(f"{_STATE}nf4", f"{_STATE}fp4", "SCB", "weight_format"),
)
_ROW_MAJOR = 0  # of `weight_format`; the others are for GPUs


def decode(parts: Mapping[str, Tensor], _: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs], float32."""
    if "SCB" in parts:
        form = parts.get("weight_format")
        if form is not None and int(form) != _ROW_MAJOR:
            raise CheckpointError(f"8-bit weights of bitsandbytes in the order {int(form)} are not read")
        return parts["weight"].float() * (parts["SCB"].float() / 127).unsqueeze(1)
    state = next(parts[name] for name in parts if name.startswith(_STATE))
    described = msgspec.json.decode(state.numpy().tobytes(), type=dict[str, Any])
    packed = parts["weight"].flatten()
    # The upper half of a byte is the first number.
    indices = torch.stack((packed.bitwise_right_shift(4), packed.bitwise_and(15)), dim=1).flatten().int()
    numbers = parts["weight.quant_map"].float()[indices]
    shape = described["shape"]
    scales = _scales(parts, described).repeat_interleave(int(described["blocksize"]))
    count = int(torch.tensor(shape).prod())
    return (numbers[:count] * scales[:count]).reshape(shape)


def _scales(parts: Mapping[str, Tensor], described: Mapping[str, Any]) -> Tensor:
    """The scale of each block; they may be quantized themselves (`double_quant`)."""
    scales = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return scales.float()
    outer = parts["weight.nested_absmax"].float().repeat_interleave(int(described["nested_blocksize"]))
    values = parts["weight.nested_quant_map"].float()[scales.int()]
    return values * outer[: len(scales)] + float(described["nested_offset"])
