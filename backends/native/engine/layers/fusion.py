"""Parts of a model that are joined to one each, and how they are put in the place of the model's own.

For the few rows of a decode step starting torch's small operations takes longer than what they do, and a layer has some
sixty. What a part joins is seen by what it computes, not by its class: it is asked beside the model's own at load, and
one that says anything else is not used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# How far a number may be from the model's own, as part of the largest in its row: sums are taken in another order.
_ROUNDINGS = 4


def replace_parts(parent: nn.Module, of: Callable[[nn.Module], nn.Module | None]) -> None:
    """Put `of(part)`, where it is not None, in the place of each part of `parent`; of others look at their parts.

    One after the other, so that memory holds out.
    """
    for name, part in list(parent.named_children()):
        own = of(part)
        if own is None:
            replace_parts(part, of)
        else:
            setattr(parent, name, own)


def alike(expected: Tensor, found: Tensor) -> bool:
    """Whether two tensors [..., width] are equal but for roundings."""
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return False
    if not expected.numel():
        return True
    allowed = _ROUNDINGS * torch.finfo(expected.dtype).eps * expected.abs().amax(-1, keepdim=True)
    return bool(((found - expected).abs() <= allowed).all())


def join(*linears: nn.Linear) -> nn.Linear | None:
    """One linear layer whose outputs are those of several, one after the other; None if they are of other kinds."""
    first = linears[0]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    kinds = {(linear.in_features, linear.weight.dtype) for linear in linears}
    if len(kinds) > 1 or len(biases) not in (0, len(linears)):
        return None
    weight = torch.cat([linear.weight.detach() for linear in linears])
    joined = nn.Linear(first.in_features, len(weight), bias=False, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
    return joined


class Projections(nn.Module):
    """Linear layers that are given the same, joined to one or each under its own name, where LoRA adapters look for it.

    Args:
        linears: by name.
        joined: the name of all as one; none: they stay apart.
    """

    def __init__(self, linears: dict[str, nn.Linear], joined: str = "") -> None:
        super().__init__()
        one = join(*linears.values()) if joined else None
        self._names = tuple(linears) if one is None else (joined,)
        for name, linear in zip(self._names, linears.values() if one is None else (one,), strict=True):
            setattr(self, name, linear)

    def project(self, rows: Tensor) -> Tensor:
        """[..., width] to what each makes of it, one after the other."""
        parts = [getattr(self, name)(rows) for name in self._names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
