"""What a multimodal model adds to a language model. It wraps a model of transformers and is not one: theirs have a
`get_input_embeddings` of their own, without arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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

    def get_mrope_input_positions(
        self,
        input_ids: Tensor,  # noqa: ARG002
        is_multimodal: Tensor,  # noqa: ARG002
        kwargs: Sequence[Mapping[str, Tensor]],  # noqa: ARG002
    ) -> tuple[Tensor, int] | None:
        """Positions in three dimensions, for models that have them.

        Args:
            input_ids: a whole prompt, [tokens].
            is_multimodal: which of it are placeholders, [tokens].
            kwargs: the fields of each picture, in order.

        Returns:
            Positions [3, tokens], and what a token after the prompt adds to its index. None: they are the indices.
        """
        return None

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
