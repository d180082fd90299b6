"""compressed-tensors, as llm-compressor writes it: integers of 4 or 8 bits, packed or not, and 8-bit floats.

Scales are for the weight, for each output, for each group of inputs, or for each block. Activations are not quantized
here, whatever the configuration says of them.

Source: vllm-project/compressed-tensors, compressors/{quantized_compressors,pack_quantized}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from backends.native.engine.formats.packing import spread, unpack

PARTS = (
    *("weight", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
)


def decode(parts: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Tensor:
    """The weight [outputs, inputs], float32."""
    zeros = parts.get("weight_zero_point")
    if "weight_packed" in parts:
        outputs, inputs = parts["weight_shape"].tolist()
        bits = _bits(parts["weight_packed"].shape[1], inputs)
        weight = _signed(parts["weight_packed"], bits, 1)[:, :inputs].float()
        if zeros is not None and zeros.dtype == parts["weight_packed"].dtype:
            zeros = _signed(zeros, bits, 0)[:outputs]
    else:
        weight = parts["weight"].float()
    scales = parts["weight_scale"].float()
    groups = parts.get("weight_g_idx")
    if groups is not None and int(groups.min()) >= 0:
        # Ordered by activations: the groups' inputs are not neighbours.
        scales = scales[:, groups.long()]
        zeros = None if zeros is None else zeros[:, groups.long()]
    block = _block(quantization)
    if zeros is not None:
        weight = weight - spread(zeros.float(), weight.shape, block)
    return weight * spread(scales, weight.shape, block)


def _bits(words: int, inputs: int) -> int:
    """The bits of a number, of which `words` hold `inputs`: groups of layers may have different ones."""
    return next(bits for bits in (2, 4, 8) if -(-inputs // (32 // bits)) == words)


def _signed(words: Tensor, bits: int, dimension: int) -> Tensor:
    return unpack(words, bits, dimension) - (1 << (bits - 1))


def _block(quantization: Mapping[str, Any]) -> Any:
    """Rows and columns of a block that shares a scale, if the weights are quantized by blocks."""
    groups = (quantization.get("config_groups") or {}).values()
    return next((found for group in groups if (found := (group.get("weights") or {}).get("block_structure"))), None)
