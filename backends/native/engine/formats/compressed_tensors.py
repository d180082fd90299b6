"""compressed-tensors, as llm-compressor writes it: integers of 4 or 8 bits, packed or not, and 8-bit floats.

Scales are for the weight, for each output, for each group of inputs, or for each block. Activations are not quantized
here, whatever the configuration says of them.

Source: vllm-project/compressed-tensors, compressors/{quantized_compressors,pack_quantized}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.formats.levels import Levels
from backends.native.engine.formats.packing import spread, unpack

PARTS = (
    *("weight", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
)


def levels(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Levels | None:
    """The weight [outputs, inputs]; None: it consists of floats."""
    zeros = parts.get("weight_zero_point")
    if "weight_packed" in parts:
        outputs, inputs = parts["weight_shape"].tolist()
        bits = _bits(parts["weight_packed"].shape[1], inputs)
        numbers = unpack(parts["weight_packed"], bits, 1)[:, :inputs]
        if zeros is not None and zeros.dtype == parts["weight_packed"].dtype:
            zeros = unpack(zeros, bits, 0)[:outputs]
        elif zeros is not None:
            zeros = zeros.int() + (1 << (bits - 1))
    elif parts["weight"].is_floating_point():
        return None
    else:
        bits = 8 * parts["weight"].itemsize
        numbers = parts["weight"].int() + (1 << (bits - 1))
        zeros = None if zeros is None else zeros.int() + (1 << (bits - 1))
    scales = parts["weight_scale"].float()
    scales = scales.reshape(len(scales) if scales.dim() else 1, -1)
    zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.int32) if zeros is None else zeros.view_as(scales)
    order = parts.get("weight_g_idx")
    # Ordered by activations: the groups' inputs are not neighbours.
    order = order.long() if order is not None and int(order.min()) >= 0 else None
    return Levels(bits, numbers, zeros, scales, order, _block(quantization))


def decode(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs] of floats, float32."""
    weight = parts["weight"].float()
    return weight * spread(parts["weight_scale"].float(), weight.shape, _block(quantization))


def _bits(words: int, inputs: int) -> int:
    """The bits of a number, of which `words` hold `inputs`: groups of layers may have different ones."""
    return next(bits for bits in (2, 4, 8) if -(-inputs // (32 // bits)) == words)


def _block(quantization: Mapping[str, Any]) -> Any:
    """Rows and columns of a block that shares a scale, if the weights are quantized by blocks."""
    groups = (quantization.get("config_groups") or {}).values()
    return next((found for group in groups if (found := (group.get("weights") or {}).get("block_structure"))), None)
