"""What a multimodal model adds to a language model. It wraps a model of transformers and is not one: theirs have a
`get_input_embeddings` of their own, without arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class SupportsMultiModal(ABC):
    """A model of transformers, and its encoder.

    Args:
        model: the loaded model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> Sequence[Tensor]:
        """The embeddings of each item, `[tokens, hidden]`; the arguments are the fields of its processor."""

    def get_language_model(self) -> Any:
        """The part that runs over embeddings."""
        return self.model.get_decoder()

    def get_input_embeddings(
        self, input_ids: Tensor, multimodal_embeddings: Sequence[Tensor] = (), *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """Embeddings of `[1, tokens]` ids, `[1, tokens, hidden]`, with those of items where `is_multimodal` `[tokens]`.

        By the mask and not by the placeholder's id, which a client may have written and a chunk may hold in part.
        """
        embeds: Tensor = self.model.get_input_embeddings()(input_ids)
        if multimodal_embeddings:
            assert is_multimodal is not None
            embeds = merge_multimodal_embeddings(embeds, multimodal_embeddings, is_multimodal)
        return embeds


def merge_multimodal_embeddings(
    embeds: Tensor, multimodal_embeddings: Sequence[Tensor], is_multimodal: Tensor
) -> Tensor:
    """`embeds` [1, tokens, hidden] with the rows where `is_multimodal` [tokens] replaced, in order.

    Raises:
        ValueError: there are more or fewer of one than of the other.
    """
    import torch

    rows = torch.cat(tuple(multimodal_embeddings))
    wanted = int(is_multimodal.sum())
    if len(rows) != wanted:
        raise ValueError(f"{len(rows)} embeddings for {wanted} placeholder tokens")
    merged = embeds.clone()
    merged[0, is_multimodal] = rows.to(embeds.dtype)
    return merged
