"""Mistral 3 (Mistral Small 3.1 and later): images of any size, a token per square of merged patches, and row ends.

transformers' processor for it needs torchvision, its image processor does not: tokens are laid out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backends.native.multimodal.inputs import (
    Arrays,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import ModelWrapper, MultiModalEmbeddings
from backends.native.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    NotServed,
)
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.multimodal.updates import PromptReplacement, PromptUpdate, PromptUpdateDetails

if TYPE_CHECKING:
    from torch import Tensor

_ROW_END, _IMAGE_END = "[IMG_BREAK]", "[IMG_END]"


class Mistral3ProcessingInfo(BaseProcessingInfo):
    """Any number of images, resized to multiples of a token's side within the longest edge."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Unlimited."""
        return {"image": None}

    def get_placeholder_str(self) -> str:
        """The image token, usually `[IMG]`."""
        return str(self.get_tokenizer().convert_ids_to_tokens(self.get_hf_config().image_token_id))

    @property
    def side(self) -> int:
        """The side of the square that a token stands for, in pixels."""
        config = self.get_hf_config()
        return int(config.vision_config.patch_size * config.spatial_merge_size)

    def end_tokens(self) -> tuple[int, int]:
        """The ids of the tokens at the end of a row and of the image.

        Raises:
            NotServed: the tokenizer lacks one.
        """
        tokenizer = self.get_tokenizer()
        found = tokenizer.convert_tokens_to_ids([_ROW_END, _IMAGE_END])
        if None in found or tokenizer.unk_token_id in found:
            raise NotServed(f"its tokenizer has no {_ROW_END} and {_IMAGE_END}")
        row, image = found
        return row, image

    def get_image_size_with_most_features(self) -> ImageSize:
        """The square of the longest edge, which has the most rows and the longest."""
        edge = self.get_image_processor().size["longest_edge"]
        return ImageSize(edge, edge)


class Mistral3DummyInputsBuilder(BaseDummyInputsBuilder[Mistral3ProcessingInfo]):
    """One placeholder per image."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """The placeholders."""
        return self.info.get_placeholder_str() * mm_counts.get("image", 0)


class Mistral3MultiModalProcessor(BaseMultiModalProcessor[Mistral3ProcessingInfo]):
    """Lays an image's tokens out in rows, as transformers' `PixtralProcessor` does."""

    def _call_hf_processor(self, prompt: str, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, object]) -> Arrays:
        # Not the patch of the image processor's own file: sides must be multiples of merged patches.
        side = self.info.side
        return super()._call_hf_processor(prompt, mm_data, {**mm_kwargs, "patch_size": {"height": side, "width": side}})

    def _get_mm_fields_config(
        self,
        hf_inputs: Arrays,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Mapping[str, MultiModalFieldConfig]:
        batched = MultiModalFieldConfig.batched("image")
        return {"pixel_values": batched, "image_sizes": batched}

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
        out_mm_kwargs: MultiModalKwargs,
    ) -> Sequence[PromptUpdate]:
        placeholder = self.info.get_hf_config().image_token_id
        row_end, image_end = self.info.end_tokens()

        def tokens(index: int) -> PromptUpdateDetails:
            rows, columns = (int(edge) // self.info.side for edge in out_mm_kwargs["image_sizes"][index][0])
            ids = [*[placeholder] * columns, row_end] * rows
            return PromptUpdateDetails.select_token_id([*ids[:-1], image_end], placeholder)

        return [PromptReplacement("image", [placeholder], tokens)]


@MULTIMODAL_REGISTRY.register_processor(
    Mistral3MultiModalProcessor, info=Mistral3ProcessingInfo, dummy_inputs=Mistral3DummyInputsBuilder
)
class Mistral3ForConditionalGeneration(ModelWrapper):
    """Wraps transformers' class of the same name."""

    def get_multimodal_embeddings(self, **kwargs: Tensor) -> MultiModalEmbeddings:
        """`pixel_values` is [items, 3, height, width], `image_sizes` [items, 2]: heights and widths in pixels."""
        pixels, sizes = kwargs["pixel_values"].to(self.model.dtype), kwargs["image_sizes"]
        found = self.model.get_image_features(pixel_values=pixels, image_sizes=sizes, return_dict=True)
        features: Sequence[Tensor] = found.pooler_output
        return features
