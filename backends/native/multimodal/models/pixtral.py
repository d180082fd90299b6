"""Pixtral: a tower for images of any size in LLaVA's class. Its tokens are laid out as those of Mistral 3."""

from __future__ import annotations

from typing import Any

from backends.native.multimodal.models.mistral3 import (
    Mistral3DummyInputsBuilder,
    Mistral3ForConditionalGeneration,
    Mistral3MultiModalProcessor,
    Mistral3ProcessingInfo,
)
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY


class PixtralProcessingInfo(Mistral3ProcessingInfo):
    """Patches are not merged: each is a token."""

    @classmethod
    def covers(cls, hf_config: Any) -> bool:
        """Pixtral's tower; `llava` has the others."""
        return bool(hf_config.vision_config.model_type == "pixtral")

    @property
    def side(self) -> int:
        """The side of a patch, in pixels."""
        return int(self.get_hf_config().vision_config.patch_size)


@MULTIMODAL_REGISTRY.register_processor(
    Mistral3MultiModalProcessor, info=PixtralProcessingInfo, dummy_inputs=Mistral3DummyInputsBuilder
)
class LlavaForConditionalGeneration(Mistral3ForConditionalGeneration):
    """Wraps transformers' class of the same name, with Pixtral's tower."""
