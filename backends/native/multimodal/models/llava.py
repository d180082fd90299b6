"""LLaVA: a CLIP-like tower and a projector before a language model; all images take the same number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backends.native.multimodal.inputs import (
    Arrays,
    ImageEmbeddingItems,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import ModelWrapper, MultiModalEmbeddings
from backends.native.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.multimodal.updates import PromptReplacement, PromptUpdate

if TYPE_CHECKING:
    from torch import Tensor


class LlavaProcessingInfo(BaseProcessingInfo):
    """Any number of images, each resized to the tower's square."""

    @classmethod
    def covers(cls, hf_config: Any) -> bool:
        """All but Pixtral's tower, which takes images of any size (`pixtral`)."""
        return bool(hf_config.vision_config.model_type != "pixtral")

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Unlimited."""
        return {"image": None}

    def get_placeholder_str(self) -> str:
        """The image token, usually `<image>`."""
        return str(self.get_tokenizer().convert_ids_to_tokens(self.get_hf_config().image_token_id))

    def get_num_image_tokens(self) -> int:
        """The number of the tower's patches, plus its class token unless the strategy `default` drops that."""
        vision = self.get_hf_config().vision_config
        # `default` drops the class token of a CLIP tower, `full` keeps it.
        dropped = self.get_hf_config().vision_feature_select_strategy == "default"
        return int(vision.image_size // vision.patch_size) ** 2 + (0 if dropped else 1)

    def get_image_size_with_most_features(self) -> ImageSize:
        """The tower's square, as for all images."""
        side = self.get_hf_config().vision_config.image_size
        return ImageSize(side, side)


class LlavaDummyInputsBuilder(BaseDummyInputsBuilder[LlavaProcessingInfo]):
    """One placeholder per image."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """The placeholders."""
        return self.info.get_placeholder_str() * mm_counts.get("image", 0)


class LlavaMultiModalProcessor(BaseMultiModalProcessor[LlavaProcessingInfo]):
    """Repeats the image token, as transformers' `LlavaProcessor` does."""

    def _get_mm_fields_config(
        self,
        hf_inputs: Arrays,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Mapping[str, MultiModalFieldConfig]:
        return {name: MultiModalFieldConfig.batched("image") for name in ("pixel_values", "image_embeds")}

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
        out_mm_kwargs: MultiModalKwargs,  # noqa: ARG002
    ) -> Sequence[PromptUpdate]:
        placeholder = self.info.get_hf_config().image_token_id
        images = mm_items.get_items("image", (ImageEmbeddingItems, ImageProcessorItems))

        def tokens(index: int) -> list[int]:
            # Embeddings of a client may be fewer than the tower makes: patches can be left out.
            if isinstance(images, ImageEmbeddingItems):
                return [placeholder] * images.get_feature_size(index)
            return [placeholder] * self.info.get_num_image_tokens()

        return [PromptReplacement("image", [placeholder], tokens)]


@MULTIMODAL_REGISTRY.register_processor(
    LlavaMultiModalProcessor, info=LlavaProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class LlavaForConditionalGeneration(ModelWrapper):
    """Wraps transformers' class of the same name."""

    def get_multimodal_embeddings(self, **kwargs: Tensor) -> MultiModalEmbeddings:
        """Run tower and projector; `pixel_values` is [items, 3, side, side]."""
        pixels = kwargs["pixel_values"].to(self.model.dtype)
        found: Sequence[Tensor] = self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
        return found
