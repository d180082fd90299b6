"""The interface of multimodal models. An implementation wraps a model of transformers and is not a subclass of it:
those have a `get_input_embeddings` of their own, without arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class SupportsMultiModal(ABC):
    """A model of transformers with an image encoder.

    Args:
        model: the loaded model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> Sequence[Tensor]:
        """Encode items; the arguments are the fields of their processor.

        Returns:
            For each item [tokens, hidden].
        """

    def get_mrope_input_positions(
        self,
        input_ids: Tensor,  # noqa: ARG002
        is_multimodal: Tensor,  # noqa: ARG002
        kwargs: Sequence[Mapping[str, Tensor]],  # noqa: ARG002
    ) -> tuple[Tensor, int] | None:
        """Three-dimensional rotary positions (M-RoPE), for models that use them.

        Args:
            input_ids: a whole prompt, [tokens].
            is_multimodal: [tokens], True for placeholders.
            kwargs: the fields of each image, in order.

        Returns:
            Positions [3, tokens], and the offset that tokens after the prompt add to their index. None: positions are
            the token indices.
        """
        return None

    def get_language_model(self) -> Any:
        """The decoder, which takes embeddings."""
        return self.model.get_decoder()

    def get_input_embeddings(
        self, input_ids: Tensor, multimodal_embeddings: Sequence[Tensor] = (), *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """Embed token ids, and replace the rows of placeholders by the items' embeddings.

        The mask decides, not the placeholder's id: a client may have sent that id, and a chunk may hold a part of an
        item.

        Args:
            input_ids: [1, tokens].
            multimodal_embeddings: of the items, [tokens of the item, hidden] each.
            is_multimodal: [tokens], True for rows to replace.

        Returns:
            [1, tokens, hidden].
        """
        embeds: Tensor = self.model.get_input_embeddings()(input_ids)
        if multimodal_embeddings:
            assert is_multimodal is not None
            embeds = merge_multimodal_embeddings(embeds, multimodal_embeddings, is_multimodal)
        return embeds


def merge_multimodal_embeddings(
    embeds: Tensor, multimodal_embeddings: Sequence[Tensor], is_multimodal: Tensor
) -> Tensor:
    """Replace the rows of `embeds` [1, tokens, hidden] where `is_multimodal` [tokens] by `multimodal_embeddings`, in
    order.

    Raises:
        ValueError: the numbers of rows differ.
    """
    # Imported here: the worker imports this module, and no torch.
    import torch

    rows = torch.cat(tuple(multimodal_embeddings))
    wanted = int(is_multimodal.sum())
    if len(rows) != wanted:
        raise ValueError(f"{len(rows)} embeddings for {wanted} placeholder tokens")
    # Not in place: `embeds` is the caller's.
    merged = embeds.clone()
    # A boolean mask selects rows in order, so the n-th embedding goes to the n-th placeholder.
    merged[0, is_multimodal] = rows.to(embeds.dtype)
    return merged
