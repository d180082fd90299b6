"""VipLLaVA for the native engine: LLaVA, but for the features of several layers of the tower.

A multimodal model registers four classes: token counts per image (`info`), the largest inputs for memory profiling
(`dummy_inputs`), prompt replacement (the processor), and image embeddings (the class named as in transformers). Each
derives from LLaVA's class and overrides what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backends.native.multimodal.interfaces import SupportsMultiModal
from backends.native.multimodal.models.llava import (
    LlavaDummyInputsBuilder,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
)
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY

if TYPE_CHECKING:
    from torch import Tensor


class VipLlavaProcessingInfo(LlavaProcessingInfo):
    """As LLaVA, but the class token never counts."""

    def get_num_image_tokens(self) -> int:
        """The tower's patches."""
        vision = self.hf_config.vision_config
        return int(vision.image_size // vision.patch_size) ** 2


@MULTIMODAL_REGISTRY.register_processor(
    LlavaMultiModalProcessor, info=VipLlavaProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class VipLlavaForConditionalGeneration(SupportsMultiModal):
    """Wraps the class of the same name."""

    def get_multimodal_embeddings(self, **kwargs: Tensor) -> Sequence[Tensor]:
        """Tower, then projector; `pixel_values` is [items, 3, side, side]."""
        pixels = kwargs["pixel_values"].to(self.model.dtype)
        found: Sequence[Tensor] = self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
        return found
