"""Linear layers and embeddings on CPUs whose weights stay quantized, as their file has them (`formats`).

They take the memory that the file takes. A step of up to `most_rows` rows multiplies the blocks
(`kernels.block_product`); for a step of more rows parts of the weight are expanded in turn and multiplied as plain
weights are. Either way the numbers are those of the expanded weight but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from backends.native.engine.kernels.block_product import BlockProduct, Blocks, most_rows


class BlockLinear(nn.Module):
    """Replaces a linear layer.

    Args:
        parts: the weights of its outputs, one after the other.
        bias: [outputs], or None.
        dtype: of its rows and products.
    """

    def __init__(self, parts: tuple[Blocks, ...], bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.product = BlockProduct(parts, bias, dtype)
        self.in_features, self.out_features = self.product.inputs, self.product.outputs
        self.bias = bias
        self.dtype = dtype
        self._most_numbers = most_rows(dtype) * self.in_features

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if rows.dtype != self.dtype or rows.shape[-1] != self.in_features:  # the compiled code does not check
            raise ValueError(f"rows of {rows.shape[-1]} {rows.dtype}, not of {self.in_features} {self.dtype}")
        if not rows.numel():  # an expert of a mixture may get no row
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        if rows.numel() <= self._most_numbers:
            return self.product.multiply(rows)
        flat = rows.reshape(-1, self.in_features)
        product = flat.new_empty(len(flat), self.out_features)
        for first, weights in self.product.expanded():
            product[:, first : first + weights.shape[1]] = flat @ weights
        if self.bias is not None:
            product += self.bias
        return product.view(*rows.shape[:-1], self.out_features)

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], made anew: for code that reads weights itself."""
        return torch.cat([weights.T for _, weights in self.product.expanded()])


class BlockEmbedding(nn.Module):
    """Replaces an embedding."""

    def __init__(self, blocks: Blocks, dtype: torch.dtype) -> None:
        super().__init__()
        self.product = BlockProduct((blocks,), None, dtype)
        self.num_embeddings, self.embedding_dim = blocks.outputs, blocks.inputs

    def forward(self, ids: Tensor) -> Tensor:
        """[...] token ids to [..., width]."""
        return self.product.look_up(ids)

    @property
    def weight(self) -> Tensor:
        """[tokens, width], made anew: for code that reads weights itself."""
        return torch.cat([weights.T for _, weights in self.product.expanded()])


def can_keep(module: Any) -> bool:
    """Whether a module's weight can stay in blocks."""
    # `type is`, not `isinstance`: subclasses may compute something else (Gemma's embeddings are scaled).
    return type(module) in (nn.Linear, nn.Embedding)


def keep_blocks(model: Any, blocks: Mapping[str, Blocks], dtype: torch.dtype) -> None:
    """Replace the modules of `model` whose weights are in `blocks`, by the weights' names, in place."""
    # Several modules may share a weight (an output layer that is the input embedding): all of them are replaced.
    kept = {id(model.get_parameter(name)): found for name, found in blocks.items()}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            found = kept.get(id(child.weight)) if can_keep(child) else None
            if found is not None:
                embeds = type(child) is nn.Embedding
                replaced = BlockEmbedding(found, dtype) if embeds else BlockLinear((found,), _bias(child), dtype)
                setattr(parent, name, replaced)


@torch.inference_mode()
def expand_blocks(model: Any) -> None:
    """Replace the layers of `model` that keep blocks by plain ones, in place."""
    # By the blocks: an output layer that is the input embedding stays one.
    made: dict[int, nn.Parameter] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BlockLinear | BlockEmbedding):
                key = id(child.product.parts[0])
                if key not in made:
                    made[key] = nn.Parameter(child.weight, requires_grad=False)
                setattr(parent, name, _plain(child, made[key]))


def blocked_weights(model: Any) -> int:
    """How many weights of `model` are in blocks; shared ones count once."""
    layers = (module for module in model.modules() if isinstance(module, BlockLinear | BlockEmbedding))
    parts = {id(part): part for layer in layers for part in layer.product.parts}
    return sum(part.outputs * part.inputs for part in parts.values())


def join_blocks(*linears: BlockLinear) -> BlockLinear | None:
    """One layer with the outputs of several, one after the other; None if they differ in more than their outputs."""
    first = linears[0]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if len({(linear.in_features, linear.dtype) for linear in linears}) > 1 or len(biases) not in (0, len(linears)):
        return None
    parts = tuple(part for linear in linears for part in linear.product.parts)
    return BlockLinear(parts, torch.cat(biases) if biases else None, first.dtype)


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


def _plain(module: BlockLinear | BlockEmbedding, weight: nn.Parameter) -> nn.Module:
    plain: nn.Module
    if isinstance(module, BlockEmbedding):
        plain = nn.Embedding(module.num_embeddings, module.embedding_dim, device="meta")
    else:
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        if module.bias is not None:
            plain.bias = nn.Parameter(module.bias, requires_grad=False)
    plain.weight = weight
    return plain
