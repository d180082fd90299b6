"""Module replacement: what fused modules share, and how they take the place of a model's own.

For the few rows of a decode step, starting torch's small operations takes longer than what they compute, and a decoder
layer has some sixty. A fused module does the work of several operations at once. Whether it may replace a module is
decided by what the module computes, not by its class: both are called with the same rows at load, and a fused module
that gives other numbers is not used (decision 14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from backends.native.engine.layers.block_linear import BlockLinear, join_blocks
from backends.native.engine.layers.int8_linear import Int8Linear, join_int8

# How far a number may be from the model's own, in roundings of the largest in its row: sums are taken in another order.
_ROUNDINGS = 4


def replace_modules(parent: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace every module below `parent` for which `replacement` gives one; look inside the others.

    One module at a time, so that memory never holds two copies of the model.
    """
    # A list: children change while they are visited.
    for name, module in list(parent.named_children()):
        replaced = replacement(module)
        if replaced is None:
            replace_modules(module, replacement)
        else:
            setattr(parent, name, replaced)


def alike(expected: Tensor, found: Tensor, roundings: int = _ROUNDINGS) -> bool:
    """Whether two tensors [..., width] are equal but for so many roundings of the largest in a row."""
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return False
    if not expected.numel():
        return True
    # Relative to the largest number of a row: a sum that cancels to nearly 0 has the error of its terms. A NaN is never
    # <= anything, so it counts as different.
    allowed = roundings * torch.finfo(expected.dtype).eps * expected.abs().amax(-1, keepdim=True)
    return bool(((found - expected).abs() <= allowed).all())


def is_linear(module: object) -> bool:
    """Whether `module` is a linear layer and nothing else, with its weight in whatever form."""
    # `type is`, not `isinstance`: a subclass may compute something else, which a fused module would drop.
    return type(module) in (nn.Linear, BlockLinear, Int8Linear)


def place_of(linear: Any) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype of a linear layer's rows."""
    if isinstance(linear, BlockLinear):
        return torch.device("cpu"), linear.dtype
    if isinstance(linear, Int8Linear):
        return linear.levels.device, linear.dtype
    return linear.weight.device, linear.weight.dtype


def join(*linears: Any) -> nn.Linear | BlockLinear | Int8Linear | None:
    """One linear layer with the outputs of several, one after the other.

    None if they differ in dtype, inputs, the form of their weights, or whether they have a bias.
    """
    for kind, joined_of in ((BlockLinear, join_blocks), (Int8Linear, join_int8)):
        if any(type(linear) is kind for linear in linears):
            return joined_of(*linears) if all(type(linear) is kind for linear in linears) else None
    first = linears[0]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    kinds = {(linear.in_features, linear.weight.dtype) for linear in linears}
    if len(kinds) > 1 or len(biases) not in (0, len(linears)):
        return None
    weight = torch.cat([linear.weight.detach() for linear in linears])
    # `meta`: no memory for initial weights that are replaced in the next line.
    joined = nn.Linear(first.in_features, len(weight), bias=False, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
    return joined


class Projections(nn.Module):
    """Linear layers of the same input: joined to one, or each under its own name, where LoRA adapters look for it.

    Args:
        linears: by name.
        joined: the name of the joined layer; empty: they stay separate.
    """

    def __init__(self, linears: dict[str, Any], joined: str = "") -> None:
        super().__init__()
        one = join(*linears.values()) if joined else None
        self._names = tuple(linears) if one is None else (joined,)
        for name, linear in zip(self._names, linears.values() if one is None else (one,), strict=True):
            setattr(self, name, linear)

    def project(self, rows: Tensor) -> Tensor:
        """[..., width] to the outputs of all, one after the other."""
        parts = [getattr(self, name)(rows) for name in self._names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
