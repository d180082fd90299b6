"""The pooler of encoders: last hidden states to an embedding, by pooling, dense layers and normalization.

The steps are those that a sentence-transformers folder configures. Sums are in float32, whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from backends.native.engine.errors import LoadError
from backends.native.sentence_transformers import Pooling, Recipe

_POOLING: dict[Pooling, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.amax(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "lasttoken": lambda states: states[-1],
}


class Pooler:
    """Makes embeddings of `size` numbers.

    Args:
        recipe: the configured steps.
        folder: of the checkpoint, which has the weights of dense layers.
        width: of the hidden states.
        device: of the hidden states.

    Raises:
        LoadError: a dense layer cannot be loaded.
    """

    def __init__(self, recipe: Recipe, folder: str, width: int, device: torch.device) -> None:
        self._recipe = recipe
        self._layers = nn.Sequential()
        self.size = width * len(recipe.pooling)
        for dense in recipe.dense:
            linear = _linear(Path(folder, dense.folder), self.size)
            self._layers.extend((linear, getattr(nn, dense.activation)()))
            self.size = linear.out_features
        # `eval`: a dense layer's activation may be one that behaves otherwise in training.
        self._layers.to(device).eval()

    def vector(self, states: Tensor, unpooled: int = 0) -> Tensor:
        """Make the embedding of one text, or those of its tokens, one after the other (`Recipe.late`).

        Args:
            states: [tokens, width].
            unpooled: leading tokens (an instruction) left out, but never all; ignored if the recipe includes them.

        Returns:
            [size] or [tokens * size] float32.
        """
        # INSTRUCTOR's rule in sentence-transformers: the instruction is encoded with the text and left out of the mean.
        skip = 0 if self._recipe.include_prompt else min(unpooled, len(states) - 1)
        states = states.float()
        late = self._recipe.late is not None
        pooled = states if late else torch.cat([_pool(mode, states, skip) for mode in self._recipe.pooling])
        vector: Tensor = self._layers(pooled)
        return (nn.functional.normalize(vector, dim=-1) if self._recipe.normalize else vector).flatten()


def _pool(mode: Pooling, states: Tensor, skip: int) -> Tensor:
    # SGPT (arXiv 2202.08904): a token weighs as much as its position, counted from 1. Positions count from the start of
    # the text, also when leading tokens are skipped.
    if mode == "weightedmean":
        weights = torch.arange(skip + 1, len(states) + 1, device=states.device, dtype=states.dtype)
        return weights @ states[skip:] / weights.sum()
    return _POOLING[mode](states[skip:])


def _linear(folder: Path, width: int) -> nn.Linear:
    file = folder / "model.safetensors"
    try:
        weights = load_file(file)
        weight, bias = weights["linear.weight"], weights.get("linear.bias")
        linear = nn.Linear(width, len(weight), bias=bias is not None)
        # Strict: a weight of another shape raises RuntimeError, which is reported below.
        linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    except (OSError, KeyError, RuntimeError) as error:
        raise LoadError(f"'{file}' does not hold a linear layer of width {width}: {error}") from error
    return linear.float()
