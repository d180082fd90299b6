"""The interface of multimodal models.

A model of transformers is wrapped (`ModelWrapper`), because it has a `get_input_embeddings` of its own, without
arguments. A model that transformers does not have is an `nn.Module` that implements the interface itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from backends.native.protocol.messages import Unchunked

if TYPE_CHECKING:
    from torch import Tensor


MultiModalEmbeddings: TypeAlias = Union["Tensor", "Sequence[Tensor]"]
"""[items, tokens, hidden], or for each item [tokens, hidden]."""


class SupportsMultiModal(ABC):
    """A model with an image encoder. A subclass that is an `nn.Module` takes the configuration as its only argument."""

    deeper_arguments: frozenset[str] = frozenset()
    """Arguments of the decoder by which features of images enter deeper layers, if the model passes `deeper` on."""
    deeper: tuple[Tensor, tuple[Tensor, ...]] | None = None
    """Set by the engine before each step: which of its tokens, [1, tokens], stand for images, and what is added to
    their hidden states after the first layers, [placeholders, hidden] each. None: nothing is.
    """

    unchunked: Unchunked = "nothing"
    """What of a prompt attends in both directions, so that its tokens must be run in one step."""

    @abstractmethod
    def get_multimodal_embeddings(self, **kwargs: Any) -> MultiModalEmbeddings | None:
        """Encode items; the arguments are the fields of their processor.

        Returns:
            The items' embeddings; None if no argument is an item's. Rows of more than `hidden` numbers go on with what
            enters deeper layers, `hidden` numbers for each.
        """

    @abstractmethod
    def get_language_model(self) -> Any:
        """The language model of transformers, which takes embeddings."""

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

    def get_input_embeddings(
        self, input_ids: Tensor, multimodal_embeddings: MultiModalEmbeddings | None = None
    ) -> Tensor:
        """Embed the ids of a prompt's tokens.

        The engine asks for embeddings of text and puts those of items in their places itself, by a mask and not by the
        placeholder's id: a client may have sent that id, and a chunk may hold a part of an item.

        Args:
            input_ids: [1, tokens].
            multimodal_embeddings: of the items; the engine passes none.

        Returns:
            [1, tokens, hidden].
        """
        assert multimodal_embeddings is None
        embeds: Tensor = self.get_language_model().get_input_embeddings()(input_ids)
        return embeds


class ModelWrapper(SupportsMultiModal):
    """A multimodal model of transformers.

    Args:
        model: the loaded model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def get_language_model(self) -> Any:
        """The decoder."""
        return self.model.get_decoder()


def merge_multimodal_embeddings(
    input_ids: Tensor,
    inputs_embeds: Tensor,
    multimodal_embeddings: MultiModalEmbeddings,
    placeholder_token_id: int | Sequence[int],
) -> Tensor:
    """Replace the rows of placeholder tokens by the embeddings of items, in order.

    Args:
        input_ids: [..., tokens].
        inputs_embeds: [..., tokens, hidden]; left unchanged.
        multimodal_embeddings: of the items.
        placeholder_token_id: one or several ids.

    Raises:
        ValueError: the numbers of rows differ.
    """
    # Imported here: the worker imports this module, and no torch.
    import torch

    ids = [placeholder_token_id] if isinstance(placeholder_token_id, int) else list(placeholder_token_id)
    return merge_by_mask(inputs_embeds, multimodal_embeddings, torch.isin(input_ids, input_ids.new_tensor(ids)))


def merge_by_mask(embeds: Tensor, multimodal_embeddings: MultiModalEmbeddings, is_multimodal: Tensor) -> Tensor:
    """Replace the rows of `embeds` [..., hidden] where `is_multimodal` [...] by `multimodal_embeddings`, in order.

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
    merged[is_multimodal] = rows.to(embeds.dtype)
    return merged


def init_language_model(text_config: Any) -> Any:
    """Build the language model of an `nn.Module` of one's own: transformers' class for the configuration.

    Its `get_input_embeddings` also takes token ids, and then returns their embeddings, as vLLM's language models do.
    """
    from transformers import AutoModelForCausalLM

    # `eager` is the only attention that implements every feature; the engine replaces it by its own.
    model = AutoModelForCausalLM.from_config(text_config, attn_implementation="eager")
    layer = model.get_input_embeddings()

    def get_input_embeddings(input_ids: Tensor | None = None) -> Any:
        return layer if input_ids is None else layer(input_ids)

    model.get_input_embeddings = get_input_embeddings
    return model
