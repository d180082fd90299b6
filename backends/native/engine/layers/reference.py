"""The routines of fused layers in torch: what compiled ones must equal (`comparison`), rounded where those round."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm [..., width] rows, as Llama's module does."""
    numbers = rows.float()
    return weight * (numbers * (numbers.square().mean(-1, keepdim=True) + epsilon).rsqrt()).to(rows.dtype)


def rms_norm_once(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm [..., width] rows by a weight in float32, as Gemma's module does: rounded once."""
    return rms_norm(rows.float(), weight, epsilon).to(rows.dtype)


def rms_norm_silu(rows: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm [..., width] rows and multiply them by SiLU of `gate`, as Qwen3.5's module does."""
    return (rms_norm(rows, weight, epsilon) * functional.silu(gate.float())).to(rows.dtype)


def rms_norm_sigmoid(rows: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm [..., width] rows and multiply them by the sigmoid of `gate`, as Kimi Linear's module does: rounded once."""
    return (rms_norm(rows.float(), weight.float(), epsilon) * gate.float().sigmoid()).to(rows.dtype)


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum of two tensors [..., width], and its norm."""
    total = rows + added
    return total, rms_norm(total, weight, epsilon)


def rotate_and_store(
    joined: Tensor,
    cosines: Tensor,
    sines: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    epsilon: float,
) -> None:
    """See `kernels.triton_layers.rotate_and_store`."""
    key_heads = keys.shape[1]
    queries, new_keys, new_values = joined.tensor_split([heads, heads + key_heads], dim=1)
    turned = []
    for part, norm in zip((queries, new_keys), norms, strict=True):
        normed = part if norm is None else rms_norm(part, norm, epsilon)
        rotated, rest = normed.tensor_split([cosines.shape[-1]], dim=-1)
        first, second = rotated.chunk(2, dim=-1)
        halves = torch.cat([-second, first], dim=-1)
        rotated = rotated * cosines[0].unsqueeze(1) + halves * sines[0].unsqueeze(1)
        turned.append(torch.cat([rotated, rest], dim=-1))
    queries.copy_(turned[0])
    keys.index_copy_(0, slots, turned[1])
    values.index_copy_(0, slots, new_values)


def silu_and_mul(joined: Tensor) -> Tensor:
    """[..., 2 * width], gates before ups, to [..., width]."""
    gate, up = joined.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gelu_and_mul(joined: Tensor) -> Tensor:
    """As `silu_and_mul`, with GELU by its tanh approximation."""
    gate, up = joined.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def multiply_int8(rows: Tensor, levels: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.triton_linear.multiply_int8`."""
    weight = levels.float() * scales.float().unsqueeze(1)
    return functional.linear(rows.float(), weight, None if bias is None else bias.float()).to(rows.dtype)
