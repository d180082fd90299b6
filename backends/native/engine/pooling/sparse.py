"""The pooler of models that make sparse vectors: logits of masked tokens to the weights of a few tokens.

SPLADE (arXiv 2109.10086): a text is about the tokens that the model would put in the place of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.native.sentence_transformers import Splade


class SparsePooler:
    """Makes sparse vectors. `size` is 2: of each component an index and a value."""

    size = 2

    def __init__(self, recipe: Splade) -> None:
        self._recipe = recipe

    def vector(self, logits: Tensor, _: int = 0) -> Tensor:
        """Make the sparse vector of one text.

        Args:
            logits: [tokens, ids].

        Returns:
            [2 * components] float32: index and value of each that is not 0, in the order of the indices.
        """
        logits = logits.float()
        # Logarithms grow with what they are of, so the greatest is that of the greatest logit.
        found = self._weights(logits.amax(0)) if self._recipe.pooling == "max" else self._weights(logits).sum(0)
        indices = found.nonzero().squeeze(1)
        # float32 holds ids up to 2^24 exactly.
        return torch.stack([indices.float(), found[indices]], 1).flatten()

    def _weights(self, logits: Tensor) -> Tensor:
        weights = logits.relu().log1p()
        return weights.log1p() if self._recipe.twice else weights
